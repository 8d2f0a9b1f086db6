-- Lease a queued job to a worker. A repeat under the same token gets the same answer. The attempt goes on with
-- the journal. After a failure that wants a fresh start (restart), the journal is set aside under the number of the
-- attempt that wrote its end. The run's first claim pins tokenizer and chat template, unless its producer did.
-- reads and writes  run queued leased dead count open:<purpose> ready:<purpose> job:<job> group:<group> journal:<job>
--                   journal:<job>#<attempt>
-- ARGV   id token worker tokenizer_hash template_hash
-- reply  claimed attempt seq set_aside body entries (of the journal) oldest (step whose weights may sample for the run's
--        bound; '': any) | early not_before | tokenizer tokenizer template (the hashes of the run) |
--        leased | done | dead | surplus | unknown
local id, token, worker = ARGV[2], ARGV[3], ARGV[4]
local job, journal, queued, time = prefix .. 'job:' .. id, prefix .. 'journal:' .. id, prefix .. 'queued', now()
local pinned = redis_call('HMGET', prefix .. 'run', 'tokenizer_hash', 'template_hash', 'step', 'batch')
local state, attempt, holder, body, deadline_s, not_before, restart, was_set_aside, aside = unpack(redis_call('HMGET', job,
  'state', 'attempt', 'token', 'body', 'deadline_s', 'not_before', 'restart', 'set_aside', 'aside'))
if not state then
  -- rare: its group is acknowledged, or there is no such job
  local group, sample = parse(id)
  return { group and acked_state(group, sample) or 'unknown' }
end
if ENDED[state] or (state == 'leased' and holder ~= token) then return { state } end
if state ~= 'queued' and state ~= 'leased' then damaged(job, 'has no readable state') end
local group, body_of_group = group_of(id, 'body')
attempt, deadline_s, not_before = number(attempt, job), number(deadline_s, job), backoff_end(not_before, time)
local length = redis_call('LLEN', journal)

local function claimed(set_aside)
  -- The group was let in at the published step or before, so tokens of that step keep the bound (admission.lua).
  local is_bound = pinned[4] and group.purpose == 'train' and pinned[3]
  local oldest = is_bound and number(pinned[3], prefix .. 'run') or ''
  return { 'claimed', 'attempt', attempt, 'seq', group.seq, 'set_aside', set_aside, 'body', body or body_of_group or '',
    'entries', length, 'oldest', oldest }
end

if state == 'leased' then return claimed(was_set_aside == '1' and 1 or 0) end

-- A worker that cannot play the job leaves it for others. The message is spent, so the job is sent again at once.
if pinned[1] and (pinned[1] ~= ARGV[5] or pinned[2] ~= ARGV[6]) then
  redis_call('ZADD', queued, 'XX', not_before > time and not_before or at_once(group.seq), id)
  return { 'tokenizer', 'tokenizer', pinned[1], 'template', pinned[2] }
end
if not_before > time then
  -- This message is spent; the job is sent again when its backoff is over.
  redis_call('ZADD', queued, 'XX', 'LT', not_before, id)
  return { 'early', 'not_before', seconds(not_before) }
end

local set_aside = 0
if not pinned[1] then redis_call('HSET', prefix .. 'run', 'tokenizer_hash', ARGV[5], 'template_hash', ARGV[6]) end
if length > 0 and restart == '1' then
  redis_call('HSET', job, 'set_aside', 1) -- before the journal moves: Redis refuses this one when memory is short
  redis_call('RENAME', journal, journal .. '#' .. attempt)
  set_aside, aside, length = 1, (aside or '') .. attempt .. ' ', 0
  redis_call('HDEL', job, 'turned')
end
attempt = attempt + 1
local deadline = time + deadline_s
redis_call('HSET', job, 'state', 'leased', 'attempt', attempt, 'token', token, 'worker', worker, 'claimed', time,
  'deadline', deadline, 'kept', length)
if restart or was_set_aside or set_aside == 1 then
  redis_call('HSET', job, 'restart', 0, 'set_aside', set_aside, 'aside', aside or '')
end
redis_call('ZREM', queued, id)
local lease = id .. '#' .. attempt .. '#' .. token
redis_call('ZADD', prefix .. 'leased', math.min(time + constants.lease_s, deadline), lease)
local step = pinned[3] or (pinned[4] and '0')
if step then redis_call('HSETNX', group.key, 'started', step) end
count('claims')
return claimed(set_aside)
