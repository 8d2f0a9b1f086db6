-- Lease a queued job to a worker. A repeat under the same token gets the same answer.
-- reads and writes  queued leased count job:<job> group:<group> journal:<job> journal:<job>#<attempt>
-- ARGV   id token worker lease_s resume (1: go on with the journal unless the job says restart)
-- reply  claimed attempt seq set_aside body | early not_before | leased | done | dead | unknown
sound('queued', 'leased')
local id, token, resume = ARGV[1], ARGV[2], ARGV[5] == '1'
local job = typed('job:' .. id, 'hash')
local got = redis.call('HMGET', job, 'state', 'attempt', 'token', 'body', 'deadline_s', 'not_before', 'restart',
  'set_aside', 'aside')
local state, attempt = got[1], tonumber(got[2])
if not state then return { 'unknown' } end
local group = read_group(group_name(id))
if not attempt then damaged(job, 'has no attempt') end

if state == 'leased' and got[3] == token then
  return { 'claimed', attempt, tostring(group.seq), tonumber(got[8]) or 0, got[4] or '' }
end
if state ~= 'queued' then return { state } end
local time, not_before = now(), tonumber(got[6]) or 0
if not_before > time then
  -- This message is spent; the job is published again when its backoff is over.
  redis.call('ZADD', prefix .. 'queued', 'XX', 'LT', not_before, id)
  return { 'early', seconds(not_before) }
end

local journal, set_aside, aside = prefix .. 'journal:' .. id, 0, got[9] or ''
if redis.call('EXISTS', journal) == 1 and (got[7] == '1' or not resume) then
  redis.call('RENAME', journal, journal .. '#' .. attempt)
  set_aside, aside = 1, aside .. attempt .. ' '
end
attempt = attempt + 1
local deadline = time + (tonumber(got[5]) or 0)
redis.call('HSET', job, 'state', 'leased', 'attempt', attempt, 'token', token, 'worker', ARGV[3], 'claimed', time,
  'deadline', deadline, 'restart', 0, 'set_aside', set_aside, 'aside', aside)
redis.call('ZREM', prefix .. 'queued', id)
redis.call('ZADD', prefix .. 'leased', math.min(time + tonumber(ARGV[4]), deadline), id .. '#' .. attempt)
count('claims')
return { 'claimed', attempt, tostring(group.seq), set_aside, got[4] or '' }
