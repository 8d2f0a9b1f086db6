-- What all scripts share. scripts.py puts in front of each what it uses of this and the other shared files (settle,
-- holds, journal). keys.py says what the keys hold.
--
-- KEYS[1]  the prefix of all keys of the run, 'rollq:{run}:'
-- ARGV[1]  the run
-- ARGV[2]  and on: the script's own arguments, which its head names from here on
--
-- `constants` are lease_s, sending_s, confirmed_s, outage_s, grace_s, wake_s, longest_backoff_s,
-- largest_group, budgets (failures by class), infrastructure (true by class), priorities; scripts.py puts their values in
-- their places.
--
-- A script reads everything that it needs before its first write, because Redis keeps what a failing script has written.
-- What scripts write is trusted. A key of another type, or a number that cannot be read, ends the script with an error
-- that names the key. Nothing is repaired.
--
-- A reply is a status, and behind it names and values (scripts.py: Reply).

local prefix = KEYS[1]
local run = ARGV[1]

local INDEXES = { 'queued', 'leased', 'dead', 'open:train', 'ready:train', 'held:train', 'open:eval', 'ready:eval',
  'held:eval' }
local ENDED = { done = true, dead = true, surplus = true }
local PURPOSES = { 'train', 'eval' }
-- More groups than a run can have, and a number that Lua and Redis both write in full.
local MOST = 1e9

local function damaged(key, why)
  error('DAMAGED ' .. key .. ' ' .. why)
end

-- As redis.call, but with an error that names the key when it holds what scripts do not write there.
local function redis_call(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then
      damaged(key, 'is a ' .. redis.call('TYPE', key)['ok'] .. ', which rollq does not keep there')
    end
    if string.find(reply.err, 'not an integer', 1, true) then damaged(key, 'holds no number: ' .. tostring(...)) end
    return redis.call(command, key, ...) -- raises the same error
  end
  return reply
end

-- A stored number; 0 when it is missing.
local function number(text, key)
  if not text then return 0 end
  return tonumber(text) or damaged(key, 'has no readable number: ' .. text)
end

-- A stored count within bounds, so that a loop over it ends soon.
local function bounded(text, least, most, key, name)
  local count = string.find(text or '', '^%d+$') and tonumber(text)
  if not (count and count >= least and count <= most) then damaged(key, 'has no readable ' .. name) end
  return count
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
  local at = tonumber(not_before or 0) or 0
  return at <= time + constants.longest_backoff_s and at or 0
end

-- When Redis is out of memory, it refuses a script whose first write needs some, and runs one that first frees some.
-- Scripts that end, renew or hand out work, or lead to it, call this before their first write: only they make room.
local function allow_without_memory()
  redis_call('DEL', prefix .. 'nothing')
end

local function count(name, by)
  redis_call('HINCRBY', prefix .. 'count', name, by or 1)
end

-- The reply to a writer that does not hold the lease. It leaves no trace of a run that was deleted.
local function fenced()
  if redis_call('EXISTS', prefix .. 'run') == 1 then count('fenced') end
  return { 'fenced' }
end

-- Adds a done job and its numbers to the totals whose names begin so: 'name number name number ...', no name twice.
local function tally(text, sign, begin)
  local names, fields, last = { begin .. 'done' }, { begin .. 'done', sign }, 1
  for name, number in string.gmatch(text, '(%S+) (%S+)') do
    last, name = last + 1, begin .. name
    names[last], fields[2 * last - 1], fields[2 * last] = name, name, sign * (tonumber(number) or 0)
  end
  local totals = redis_call('HMGET', prefix .. 'count', unpack(names))
  for i = 1, last do fields[2 * i] = fields[2 * i] + number(totals[i], prefix .. 'count') end
  redis_call('HSET', prefix .. 'count', unpack(fields))
end

-- Group and sample of a job id of this run; nil for any other name.
local function parse(id)
  local of, name, sample = string.match(id, '^([^/]+)/([^/]+)/(%d+)$')
  if of == run then return name, tonumber(sample) end
end

local function member(name, sample)
  return run .. '/' .. name .. '/' .. sample
end

-- One field of a record; false when it is not there.
local function field(name, of)
  return redis_call('HGET', prefix .. name, of)
end

-- The score in queued of a job that is due at once: what was interrupted goes in the order of its groups.
local function at_once(seq)
  return seq / MOST
end

-- The group as a table with its key; also the values of the fields that follow its name.
local function read_group(name, ...)
  local key = prefix .. 'group:' .. name
  local got = redis_call('HMGET', key, 'seq', 'size', 'viable', 'purpose', 'done', 'dead', 'state', 'token', 'handed',
    'discarded', 'queue', 'spare', 'surplus', 'started', ...)
  if not got[7] then damaged(key, 'is no group') end
  if got[4] ~= 'train' and got[4] ~= 'eval' then damaged(key, 'has no readable purpose') end
  if not string.find(got[11] or '', '^%w[%w._-]*$') then damaged(key, 'has no readable queue') end
  local size = bounded(got[2], 1, constants.largest_group, key, 'size')
  local spare = bounded(got[12], 0, constants.largest_group - size, key, 'spare')
  local group = { name = name, key = key, size = size, spare = spare, members = size + spare, seq = number(got[1], key),
    viable = number(got[3], key), purpose = got[4], done = number(got[5], key), dead = number(got[6], key), state = got[7],
    token = got[8], handed = number(got[9], key), discarded = number(got[10], key), queue = got[11],
    surplus = number(got[13], key), started = got[14] and number(got[14], key) or '' }
  return group, unpack(got, 15)
end

-- The group of a job; also the values of the fields that follow its id.
local function group_of(id, ...)
  local name = parse(id) or damaged(prefix .. 'job:' .. id, 'is no job of this run')
  return read_group(name, ...)
end

-- How far a source got: groups, jobs and mark; nothing of an unknown one.
local function read_cursor(source)
  local stored = redis_call('HGET', prefix .. 'sources', source)
  if not stored then return 0, 0, '' end
  local groups, jobs, mark = string.match(stored, '^(%d+) (%d+) (%x*)$')
  if not groups then damaged(prefix .. 'sources', 'has no readable cursor of ' .. source) end
  return tonumber(groups), tonumber(jobs), mark
end

-- The record of an acknowledged group (settle.lua: shrink): 'seq members token dead,...;surplus,... digests', the last
-- as raw bytes; without surplus members there is no semicolon. nil when there is no record.
local function acked_record(name)
  local key = prefix .. 'acked:' .. name
  local packed = redis_call('GET', key)
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

-- The clock was set back by so much: every hold ends as much earlier, because none is renewed to an earlier end
-- (renew_hold). Live consumers have the time to renew.
local function set_back_holds(purpose, time, by)
  local held = prefix .. 'held:' .. purpose
  local rows = redis_call('ZRANGE', held, 0, -1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local ends = math.min(tonumber(rows[i + 1]), math.max(tonumber(rows[i + 1]) - by, time + constants.grace_s))
    redis_call('ZADD', held, 'XX', ends, rows[i])
  end
end

-- Note that Redis can be reached now by those who renew holds of that purpose (take.lua).
local function stamp(purpose, time)
  local last = number(field('run', 'heard:' .. purpose), prefix .. 'run')
  if time < last then set_back_holds(purpose, time, last - time) end
  if (time < last or time - last >= 1) and redis_call('EXISTS', prefix .. 'run') == 1 then
    redis_call('HSET', prefix .. 'run', 'heard:' .. purpose, seconds(time))
  end
end

-- The same for the holds that there are.
local function stamp_held(time)
  for _, purpose in ipairs(PURPOSES) do
    if redis_call('EXISTS', prefix .. 'held:' .. purpose) == 1 then stamp(purpose, time) end
  end
end

-- Note that the run is being reaped. True while no lease may expire.
local function in_grace(time)
  local beat, grace = unpack(redis_call('HMGET', prefix .. 'run', 'beat', 'grace'))
  beat, grace = number(beat, prefix .. 'run'), number(grace, prefix .. 'run')
  -- A silence below 0 means that the clock was set back, so every lease ends later than it should.
  local reaped_lately = beat <= time and time - beat <= constants.outage_s
  if not (reaped_lately and grace <= time + constants.grace_s) then grace = time + constants.grace_s end
  redis_call('HSET', prefix .. 'run', 'beat', time, 'grace', grace)
  return time < grace
end
