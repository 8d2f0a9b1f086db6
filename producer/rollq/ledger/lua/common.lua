-- What all scripts share. scripts.py puts in front of each what it uses of this and the other shared files (settle,
-- holds, journal). keys.py says what the keys hold.
--
-- KEYS[1]  the prefix of all keys of the run, 'rollq:{run}:'
-- ARGV[1]  the run
-- ARGV[2]  and on: the script's own arguments, which its head names from here on
--
-- `constants` are lease_s, sending_s, confirmed_s, outage_s, grace_s, wake_s, longest_backoff_s,
-- largest_group, default_queue, budgets (failures by class), infrastructure (true by class), priorities; scripts.py puts their values
-- in their places.
--
-- A script reads and checks everything before its first write, because Redis keeps what a failing script has written.
-- Counters come last and cannot fail. Only scripts write these keys, so what they hold is not checked further than its
-- type and the numbers that a loop or a write depends on.

local prefix = KEYS[1]
local run = ARGV[1]

local INDEXES = { 'queued', 'leased', 'dead', 'open:train', 'ready:train', 'held:train', 'open:eval', 'ready:eval',
  'held:eval' }
local JOB_STATES = { queued = true, leased = true, done = true, dead = true, surplus = true }
local ENDED = { done = true, dead = true, surplus = true }
local GROUP_STATES = { open = true, ready = true, held = true, dropped = true }
local PURPOSES = { train = true, eval = true }
-- More attempts, failures or groups than a run can have, and a number that Lua and Redis both write in full.
local MOST = 1e9

local function damaged(key, why)
  error('DAMAGED ' .. key .. ' ' .. why)
end

-- The message of damaged(), without Redis's wrapping.
local function reason(failure)
  local text = type(failure) == 'table' and failure.err or tostring(failure)
  return string.match(text, 'DAMAGED (.*)') or text
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

-- The reply of a command on a key of that type. Cheaper than typed() for what is asked often.
local function checked(name, kind, command, ...)
  local reply = redis.pcall(command, prefix .. name, ...)
  if type(reply) == 'table' and reply.err then typed(name, kind) end
  return reply
end

-- Before the first write of a script that moves groups or ends jobs.
local function check_indexes()
  for _, name in ipairs(INDEXES) do typed(name, 'zset') end
end

-- A stored count when it is a whole number within bounds, else nil. Lua alone would also take 'nan', 'inf' and '0x10'.
local function whole(text, least, most)
  local number = type(text) == 'string' and #text <= 10 and string.find(text, '^%d+$') and tonumber(text)
  return number and number >= least and number <= most and number or nil
end

-- A stored name of a queue; nil when it is none.
local function queue_name(text)
  return type(text) == 'string' and string.find(text, '^%w[%w._-]*$') and text or nil
end

-- A stored number, such as a time; 0 when it is missing.
local function stored_number(text)
  return tonumber(text) or 0
end

local function seconds(time) -- replies carry no fractions
  return string.format('%.6f', time)
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- When a job's backoff ends. If it is farther ahead than the longest backoff, Redis's clock was set back.
local function backoff_end(not_before, time)
  local at = stored_number(not_before)
  return at <= time + constants.longest_backoff_s and at or 0
end

-- When Redis is out of memory, it refuses a script whose first write needs some, and runs one that first frees some.
-- Scripts that end, renew or hand out work, or lead to it, call this before their first write: only they make room.
local function allow_without_memory()
  redis.call('DEL', prefix .. 'nothing')
end

local function count(name, by)
  redis.pcall('HINCRBY', prefix .. 'count', name, by or 1)
end

-- The reply to a writer that does not hold the lease. It leaves no trace of a run that was deleted.
local function fenced()
  if redis.call('EXISTS', prefix .. 'run') == 1 then count('fenced') end
  return { 'fenced' }
end

-- Adds a done job and its numbers to the totals whose names begin so: 'name number name number ...', no name twice.
local function tally(text, sign, begin)
  local names, fields, last = { begin .. 'done' }, { begin .. 'done', sign }, 1
  for name, number in string.gmatch(text, '(%S+) (%S+)') do
    last, name = last + 1, begin .. name
    names[last], fields[2 * last - 1], fields[2 * last] = name, name, sign * (tonumber(number) or 0)
  end
  local totals = redis.pcall('HMGET', prefix .. 'count', unpack(names))
  if totals.err then return end
  for i = 1, last do fields[2 * i] = fields[2 * i] + (tonumber(totals[i]) or 0) end
  redis.call('HSET', prefix .. 'count', unpack(fields))
end

-- Group and sample of a job id of this run; nil for any other name.
local function parse(id)
  local of, name, sample = string.match(id, '^([^/]+)/([^/]+)/(%d+)$')
  if of == run then return name, whole(sample, 0, constants.largest_group - 1) end
end

local function member(name, sample)
  return run .. '/' .. name .. '/' .. sample
end

-- One field of a record that may be of another type; nil then, and when it is not there.
local function field(name, of)
  local found = redis.pcall('HGET', prefix .. name, of)
  return type(found) == 'string' and found or nil
end

-- The score in queued of a job that is due at once: what was interrupted goes in the order of its groups.
local function at_once(seq)
  return seq / MOST
end

-- The group as a table with its key, checked so that settle() cannot fail half-way; also the values of the fields that
-- follow its name.
local function read_group(name, ...)
  local key = prefix .. 'group:' .. name
  local got = checked('group:' .. name, 'hash', 'HMGET', 'seq', 'size', 'viable', 'purpose', 'done', 'dead', 'state',
    'token', 'handed', 'discarded', 'queue', 'spare', 'surplus', 'started', ...)
  local size = whole(got[2], 1, constants.largest_group)
  local spare = whole(got[12] or '0', 0, constants.largest_group - (size or 0))
  local members = size and spare and size + spare or 0
  local group = {
    size = size, spare = spare, members = members, seq = whole(got[1], 0, MOST), handed = whole(got[9], 0, MOST),
    viable = whole(got[3], 1, size or 0), done = whole(got[5], 0, members), dead = whole(got[6], 0, members),
    discarded = whole(got[10] or '0', 0, members), surplus = whole(got[13] or '0', 0, members),
    purpose = PURPOSES[got[4]] and got[4], state = GROUP_STATES[got[7]] and got[7], queue = queue_name(got[11]),
  }
  if not (size and spare and group.seq and group.handed and group.viable and group.done and group.dead
    and group.discarded and group.surplus and group.purpose and group.state and group.queue) then
    for _, of in ipairs({ 'size', 'spare', 'seq', 'handed', 'viable', 'done', 'dead', 'discarded', 'surplus', 'purpose',
      'state', 'queue' }) do
      if not group[of] then damaged(key, 'has no readable ' .. of) end
    end
  end
  group.name, group.key, group.token, group.started = name, key, got[8], got[14] or ''
  return group, unpack(got, 15)
end

-- The group of a job that has not ended; also the values of the fields that follow its id.
local function open_group(id, ...)
  local name = parse(id) or damaged(prefix .. 'job:' .. id, 'is no job of this run')
  local group, one, other = read_group(name, ...)
  if group.state ~= 'open' then damaged(group.key, 'is ' .. group.state .. ' although job ' .. id .. ' has not ended') end
  return group, one, other
end

-- How far a source got: groups, jobs and mark. Unreadable ones count as none: the producer sends everything again.
local function read_cursor(source)
  local stored = redis.call('HGET', typed('sources', 'hash'), source) or ''
  local groups, jobs, mark = string.match(stored, '^(%d+) (%d+) (%x*)$')
  if not groups then return 0, 0, '' end
  return tonumber(groups), tonumber(jobs), mark
end

-- The record of an acknowledged group (settle.lua: shrink): 'seq members token dead,...;surplus,... digests', the last
-- as raw bytes; without surplus members there is no semicolon. nil when there is no record.
local function acked_record(name)
  local key = typed('acked:' .. name, 'string')
  local packed = redis.call('GET', key)
  if not packed then return nil end
  local seq, members, token, samples, digests = string.match(packed, '^(%d+) (%d+) (%S*) ([%d,;]*) (.*)$')
  if not seq then damaged(key, 'is no record of an acknowledged group') end
  local dead, surplus = {}, {}
  for sample in string.gmatch(string.match(samples, '^[^;]*'), '%d+') do dead[#dead + 1] = tonumber(sample) end
  for sample in string.gmatch(string.match(samples, ';(.*)') or '', '%d+') do surplus[tonumber(sample)] = true end
  return { seq = tonumber(seq), members = tonumber(members), token = token, dead = dead, surplus = surplus,
    digests = digests }
end

-- How a member of an acknowledged group ended: done, dead or surplus. nil without a record or such a member.
local function acked_state(name, sample)
  local acked = acked_record(name)
  if not acked or not sample or sample >= acked.members then return nil end
  for _, dead in ipairs(acked.dead) do
    if dead == sample then return 'dead' end
  end
  return acked.surplus[sample] and 'surplus' or 'done'
end

-- Note that Redis can be reached now by those who renew holds of that purpose (take.lua).
local function stamp(purpose, time)
  local last = stored_number(field('run', 'heard:' .. purpose))
  if (time < last or time - last >= 1) and redis.call('EXISTS', prefix .. 'run') == 1 then
    redis.pcall('HSET', prefix .. 'run', 'heard:' .. purpose, seconds(time))
  end
end
