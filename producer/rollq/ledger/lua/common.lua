-- What the scripts share, with ends.lua and damage.lua; put in front of each of them. keys.py says what the keys hold.
--
-- A script reads and checks everything before its first write: Redis keeps what a failing script has written so far.
-- Counters come last and cannot fail. Numbers of a record are read by whole() and moment() alone.

local prefix = KEYS[1] -- 'rollq:{run}:'; every key is prefix .. name, so all are in the run's slot
local run = string.match(prefix, '{(.*)}')

local TYPES = {
  run = 'hash', sources = 'hash', count = 'hash', queued = 'zset', leased = 'zset', dead = 'zset',
  ['open:train'] = 'zset', ['ready:train'] = 'zset', ['held:train'] = 'zset',
  ['open:eval'] = 'zset', ['ready:eval'] = 'zset', ['held:eval'] = 'zset',
}
local JOB_STATES = { queued = true, leased = true, done = true, dead = true }
local GROUP_STATES = { open = true, ready = true, held = true, acked = true, dropped = true }
local PURPOSES = { train = true, eval = true }
-- Samples of a group (job.LARGEST_GROUP): scripts walk them, and Redis does nothing else meanwhile.
local LARGEST = 10000
-- More attempts, failures or groups than there can be, and few enough for every way of writing a number.
local MOST = 1e9

local function damaged(key, why)
  error('DAMAGED ' .. key .. ' ' .. why)
end

-- The full name of a key that is missing or of the type that it must have.
local function typed(name, kind)
  local key = prefix .. name
  local found = redis.call('TYPE', key)['ok']
  if found ~= 'none' and found ~= kind then
    damaged(key, 'is a ' .. found .. ' where a ' .. kind .. ' belongs')
  end
  return key
end

local function sound(...)
  for _, name in ipairs({ ... }) do typed(name, TYPES[name]) end
end

-- What damaged() said, without Redis's wrapping.
local function reason(failure)
  local text = type(failure) == 'table' and failure.err or tostring(failure)
  return string.match(text, 'DAMAGED (.*)') or text
end

-- A stored number as scripts write it, when it is a whole one within bounds; else nil. Lua takes 'nan', 'inf', '1e15'
-- and '0x10' for numbers as well: they compare with nothing, loop for ever, or are more than Redis's integers hold.
local function whole(text, least, most)
  local number = type(text) == 'string' and #text <= 10 and string.match(text, '^%d+$') and tonumber(text)
  return number and number >= least and number <= most and number or nil
end

-- A stored number that may have a fraction or a sign; else nil.
local function finite(text)
  local number = type(text) == 'string' and tonumber(text)
  return number and number > -1e15 and number < 1e15 and number or nil
end

-- A stored time, or 0.
local function moment(text)
  return math.max(0, finite(text) or 0)
end

local function seconds(time) -- replies carry no fractions
  return string.format('%.6f', time)
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- Out of memory, Redis refuses a script whose first write needs some, and lets one go on that began by freeing. What
-- ends, renews or hands out work says this before its first write: only that makes room again.
local function even_without_memory()
  redis.call('DEL', prefix .. 'nothing')
end

local function count(field, by)
  redis.pcall('HINCRBY', prefix .. 'count', field, by or 1)
end

-- The reply to whoever does not hold the lease. Of a run that was forgotten it leaves no trace.
local function fenced()
  if redis.call('EXISTS', prefix .. 'run') == 1 then count('fenced') end
  return { 'fenced' }
end

-- What each done job adds to the totals, as 'name number name number ...'; kept in its group's record.
local function tally(text, sign)
  for name, number in string.gmatch(text, '(%S+) (%S+)') do
    redis.pcall('HINCRBYFLOAT', prefix .. 'count', name, string.format('%.17g', sign * (finite(number) or 0)))
  end
end

-- The attempt's replay is through: it goes on with the journal that it found.
local function resumed(turned, length)
  count('resumed')
  count('turns_saved', whole(turned, 0, length) or 0)
end

-- Group and sample of a job id of this run; nil for whatever else a name may be.
local function parse(id)
  local of, name, digits = string.match(id, '^([^/]+)/([^/]+)/(%d+)$')
  local sample = whole(digits, 0, LARGEST - 1)
  if of == run and sample and digits == tostring(sample) then return name, sample end
end

local function group_name(id)
  return parse(id) or damaged(prefix .. 'job:' .. id, 'is no job of this run')
end

local function member(group, sample)
  return run .. '/' .. group.name .. '/' .. sample
end

-- A field of a record that may be damaged: nil then, and when it is not there.
local function field(name, of)
  local found = redis.pcall('HGET', prefix .. name, of)
  return type(found) == 'string' and found or nil
end

local function is_there(group, sample)
  return redis.call('EXISTS', prefix .. 'job:' .. member(group, sample)) == 1
end

-- The size of the group that a member's body tells (codec.py); nil when it cannot be read.
local function told_size(group, sample)
  local well, body = pcall(cmsgpack.unpack, field('job:' .. member(group, sample), 'body') or '')
  if not well or type(body) ~= 'table' or body[3] ~= run or body[4] ~= group.name then return nil end
  return whole(tostring(body[17]), 1, LARGEST)
end

-- The record's size, unless the members know better: one lies beyond it, or the last is missing and another says so.
-- nil: it cannot be, and nobody says what it is.
local function true_size(group, size)
  local beyond = is_there(group, size)
  if not beyond and is_there(group, size - 1) then return size end
  for sample = 0, size do
    local told = told_size(group, sample)
    if told then return told end
  end
  return not beyond and size or nil
end

-- The group as a table with its key, checked so that settle() cannot fail half-way.
local function read_group(name)
  local key = typed('group:' .. name, 'hash')
  local got = redis.call('HMGET', key, 'seq', 'size', 'viable', 'purpose', 'done', 'dead', 'state', 'token', 'handed',
    'discarded')
  local group = { name = name, key = key, state = got[7], token = got[8] }
  local size = whole(got[2], 1, LARGEST)
  group.size = size and true_size(group, size)
  if not group.size or not GROUP_STATES[group.state] then damaged(key, 'is not a group') end
  group.resized = group.size ~= size
  group.seq, group.handed = whole(got[1], 0, MOST), whole(got[9], 0, MOST)
  group.viable = whole(got[3], 1, group.size)
  group.done, group.dead = whole(got[5], 0, group.size), whole(got[6], 0, group.size)
  group.discarded = whole(got[10] or '0', 0, group.size)
  if not (group.seq and group.handed and group.viable and group.done and group.dead and group.discarded) then
    damaged(key, 'is not a group')
  end
  group.purpose = PURPOSES[got[4]] and got[4]
  if not group.purpose and group.state ~= 'dropped' and group.state ~= 'acked' then damaged(key, 'has no purpose') end
  return group
end

-- The group of a job that is about to end.
local function open_group(id)
  local group = read_group(group_name(id))
  if group.state ~= 'open' then damaged(group.key, 'is ' .. group.state .. ' while job ' .. id .. ' is being played') end
  sound('open:' .. group.purpose, 'ready:' .. group.purpose)
  return group
end

-- Until now, Redis was within reach of whoever renews holds of that purpose (take.lua).
local function stamp(purpose, time)
  local last = moment(field('run', 'heard:' .. purpose))
  if (time < last or time - last >= 1) and redis.call('EXISTS', prefix .. 'run') == 1 then
    redis.pcall('HSET', prefix .. 'run', 'heard:' .. purpose, seconds(time))
  end
end
