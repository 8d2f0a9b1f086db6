-- Lease a queued job to a worker. A repeat under the same token gets the same answer. A journal is gone on with, unless
-- the last failure wants a fresh start (restart): then it is set aside under the number of the attempt that wrote its
-- end.
-- reads and writes  queued leased dead count open:<purpose> ready:<purpose> job:<job> group:<group> journal:<job>
--                   journal:<job>#<attempt>
-- ARGV   id token worker lease_s
-- reply  claimed attempt seq set_aside body journal_length | early not_before | leased | done | dead | unknown
--        (a job whose record is damaged is dead from now on)
sound('queued', 'leased')
local id, token = ARGV[1], ARGV[2]
local job, time = prefix .. 'job:' .. id, now()
if redis.call('EXISTS', job) == 0 then
  if redis.call('ZSCORE', prefix .. 'queued', id) then bury(id, 0, job .. ' is gone', time) end
  return { field('job:' .. id, 'state') or 'unknown' }
end
local got = redis.pcall('HMGET', job, 'state', 'attempt', 'token', 'body', 'deadline_s', 'not_before', 'restart',
  'set_aside', 'aside')
local state, attempt = got[1], whole(got[2], 0, MOST)
local name, sample = parse(id)
local group = name and readable_group(name, time, sample + 1)
if not group then return { 'dead' } end
if not JOB_STATES[state] or not attempt or state == 'queued' and group.state ~= 'open' then
  bury(id, attempt or 0, job .. ' is not a queued job', time)
  return { 'dead' }
end
local journal = prefix .. 'journal:' .. id
local kind = redis.call('TYPE', journal)['ok']

if state == 'leased' and got[3] == token then
  return { 'claimed', attempt, tostring(group.seq), got[8] == '1' and 1 or 0, got[4] or '',
    kind == 'list' and redis.call('LLEN', journal) or 0 }
end
if state ~= 'queued' then return { state } end
local not_before = moment(got[6])
if not_before > time and not_before <= time + 30 then -- no backoff is longer: the clock was set back
  -- This message is spent; the job is published again when its backoff is over.
  redis.call('ZADD', prefix .. 'queued', 'XX', 'LT', not_before, id)
  return { 'early', seconds(not_before) }
end

local set_aside, aside, length = 0, got[9] or '', 0
if kind ~= 'none' and (kind ~= 'list' or got[7] == '1') then
  redis.call('HSET', job, 'set_aside', 1) -- before the journal moves: Redis refuses this one when memory is short
  redis.call('RENAME', journal, journal .. '#' .. attempt)
  set_aside, aside = 1, aside .. attempt .. ' '
  redis.call('HDEL', job, 'turned')
elseif kind == 'list' then
  length = redis.call('LLEN', journal)
end
attempt = attempt + 1
-- Without a deadline_s that can be one, the worker has it from the body and renews no further.
local deadline_s = moment(got[5])
local deadline = time + (deadline_s > 0 and deadline_s or tonumber(ARGV[4]))
redis.call('HSET', job, 'state', 'leased', 'attempt', attempt, 'token', token, 'worker', ARGV[3], 'claimed', time,
  'deadline', deadline, 'restart', 0, 'set_aside', set_aside, 'aside', aside, 'kept', length)
redis.call('ZREM', prefix .. 'queued', id)
redis.call('ZADD', prefix .. 'leased', math.min(time + tonumber(ARGV[4]), deadline), id .. '#' .. attempt)
count('claims')
return { 'claimed', attempt, tostring(group.seq), set_aside, got[4] or '', length }
