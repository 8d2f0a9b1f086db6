-- Start a dead job again, with no failures and an empty journal at its next claim. Its group comes back if it was
-- dropped.
-- reads and writes  run dead queued count open:<purpose> job:<job> group:<group> acked:<group>
-- ARGV   id token
-- reply  ok | unknown | state state (of a job that is not dead) | gone (its body) | group state (it goes without the job)
--        | replaced (its dropped group, by others that admission let in)
local id, token = ARGV[2], ARGV[3]
local job = prefix .. 'job:' .. id
local state, requeued, body = unpack(redis_call('HMGET', job, 'state', 'requeued', 'body'))
if not state then
  local ended = acked_state(parse(id))
  if ended == 'dead' then return { 'gone' } end
  return ended and { 'state', 'state', ended } or { 'unknown' }
end
if requeued == token then return { 'ok' } end
if state ~= 'dead' then return { 'state', 'state', state } end
if acked_record(parse(id)) then return { 'group', 'state', 'acked' } end
if redis_call('HEXISTS', job, 'discarded') == 1 then return { 'gone' } end
local group = read_group(parse(id))
if not body and redis_call('HEXISTS', group.key, 'body') == 0 then return { 'gone' } end
if group.state ~= 'open' and group.state ~= 'dropped' then return { 'group', 'state', group.state } end
-- Others have entered in its place, and its graded members are of an old policy.
if group.state == 'dropped' and group.purpose == 'train' and read_admission() then return { 'replaced' } end

-- First, because Redis refuses it to users that may not submit.
redis_call('ZADD', prefix .. 'queued', at_once(group.seq), id)
redis_call('ZREM', prefix .. 'dead', id)
for class in pairs(constants.budgets) do redis_call('HDEL', job, 'fail:' .. class) end
redis_call('HDEL', job, 'reach')
redis_call('HSET', job, 'state', 'queued', 'not_before', 0, 'restart', 1, 'requeued', token)
redis_call('HSET', group.key, 'dead', math.max(0, group.dead - 1), 'state', 'open')
redis_call('ZADD', prefix .. 'open:' .. group.purpose, group.seq, group.name)
count('requeued')
if group.state == 'dropped' then
  count('groups_dropped', -1)
  count('dropped', 0 - group.done)
end
return { 'ok' }
