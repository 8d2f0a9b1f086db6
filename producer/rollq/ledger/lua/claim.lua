-- Lease a queued job to a worker. A repeat under the same token gets the same answer. The attempt goes on with
-- the journal. After a failure that wants a fresh start (restart), the journal is set aside under the number of the
-- attempt that wrote its end. The run's first claim pins tokenizer and chat template, unless its producer did.
-- reads and writes  run queued leased dead count open:<purpose> ready:<purpose> job:<job> group:<group> journal:<job>
--                   journal:<job>#<attempt>
-- ARGV   id token worker tokenizer_hash template_hash
-- reply  claimed attempt seq set_aside body journal_length oldest (step whose weights may sample for the run's bound;
--        '': any) | early not_before | tokenizer theirs template theirs |
--        leased | done | dead | surplus | unknown
--        (a job that cannot be read, or whose group cannot, is dead from now on)
local id, token, worker = ARGV[2], ARGV[3], ARGV[4]
local job, journal, time = prefix .. 'job:' .. id, prefix .. 'journal:' .. id, now()
local hashes = checked('run', 'hash', 'HMGET', 'tokenizer_hash', 'template_hash', 'step', 'batch')
local due = checked('queued', 'zset', 'ZSCORE', id)
typed('leased', 'zset')
local got = redis.pcall('HMGET', job, 'state', 'attempt', 'token', 'body', 'deadline_s', 'not_before', 'restart',
  'set_aside', 'aside')
if not due and not got.err and not got[1] and redis.call('EXISTS', job) == 0 then
  -- rare: its group is acknowledged, or there is no such job
  local group, sample = parse(id)
  return { group and acked_state(group, sample) or 'unknown' }
end

-- The group was let in at the published step or before, so tokens of that step keep the bound (admission.lua).
local function oldest_step(group)
  local step = hashes[4] and group.purpose == 'train' and whole(hashes[3], 0, MOST)
  return step and tostring(step) or ''
end

local function read_job()
  if got.err then typed('job:' .. id, 'hash') end
  if ENDED[got[1]] then return nil end
  got[2], got[5] = whole(got[2], 0, MOST), stored_number(got[5])
  if not JOB_STATES[got[1]] or not got[2] or not (got[5] > 0) then
    damaged(job, 'has no readable state, attempt or deadline_s')
  end
  return open_group(id, 'body')
end

local well, group, of_group = pcall(read_job)
if not well then
  -- rare: it cannot be read
  check_indexes()
  end_unreadable(id, reason(group), time)
  return { 'dead' }
end
local state, attempt, not_before = got[1], got[2], backoff_end(got[6], time)
if state ~= 'queued' and (state ~= 'leased' or got[3] ~= token) then return { state } end
local body, length = got[4] or of_group or '', redis.pcall('LLEN', journal)
local is_list = type(length) == 'number'
if not is_list then length = 0 end
if state == 'leased' then
  return { 'claimed', attempt, tostring(group.seq), got[8] == '1' and 1 or 0, body, length, oldest_step(group) }
end

-- A worker that cannot play the job leaves it for others. The message is spent, so the job is sent again at once.
if hashes[1] and (hashes[1] ~= ARGV[5] or hashes[2] ~= ARGV[6]) then
  redis.call('ZADD', prefix .. 'queued', 'XX', not_before > time and not_before or at_once(group.seq), id)
  return { 'tokenizer', hashes[1], hashes[2] }
end
if not_before > time then
  -- This message is spent; the job is sent again when its backoff is over.
  redis.call('ZADD', prefix .. 'queued', 'XX', 'LT', not_before, id)
  return { 'early', seconds(not_before) }
end

local set_aside, aside = 0, got[9] or ''
if not hashes[1] then redis.call('HSET', prefix .. 'run', 'tokenizer_hash', ARGV[5], 'template_hash', ARGV[6]) end
if not is_list or (length > 0 and got[7] == '1') then
  redis.call('HSET', job, 'set_aside', 1) -- before the journal moves: Redis refuses this one when memory is short
  redis.call('RENAME', journal, journal .. '#' .. attempt)
  set_aside, aside, length = 1, aside .. attempt .. ' ', 0
  redis.call('HDEL', job, 'turned')
end
attempt = attempt + 1
local deadline = time + got[5]
redis.call('HSET', job, 'state', 'leased', 'attempt', attempt, 'token', token, 'worker', worker, 'claimed', time,
  'deadline', deadline, 'kept', length)
if got[7] or got[8] or set_aside == 1 then
  redis.call('HSET', job, 'restart', 0, 'set_aside', set_aside, 'aside', aside)
end
redis.call('ZREM', prefix .. 'queued', id)
redis.call('ZADD', prefix .. 'leased', math.min(time + constants.lease_s, deadline), id .. '#' .. attempt .. '#' .. token)
local step = hashes[3] or (hashes[4] and '0')
if step then redis.call('HSETNX', group.key, 'started', step) end
count('claims')
return { 'claimed', attempt, tostring(group.seq), set_aside, body, length, oldest_step(group) }
