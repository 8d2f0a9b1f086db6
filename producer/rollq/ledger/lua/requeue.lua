-- A dead job gets a fresh start: no failures, and an empty journal at its next claim. A group that was dropped comes
-- back.
-- reads and writes  dead queued count open:<purpose> job:<job> group:<group>
-- ARGV   id token
-- reply  ok | unknown | state (of a job that is not dead) | gone (its body) | group state (of one that goes without it)
sound('dead', 'queued')
local id, token = ARGV[1], ARGV[2]
local job = typed('job:' .. id, 'hash')
local got = redis.call('HMGET', job, 'state', 'requeued', 'body')
if not got[1] then return { 'unknown' } end
if got[2] == token then return { 'ok' } end
if got[1] ~= 'dead' then return { 'state', got[1] } end
if not got[3] then return { 'gone' } end
local group = read_group(group_name(id))
if group.state ~= 'open' and group.state ~= 'dropped' then return { 'group', group.state } end
if group.dead < 1 then damaged(group.key, 'has no dead members') end
if not group.purpose then damaged(group.key, 'was damaged: nobody knows any more what it is for') end
sound('open:' .. group.purpose)

redis.call('ZREM', prefix .. 'dead', id)
redis.call('HDEL', job, 'fail:engine', 'fail:user', 'fail:worker', 'fail:env', 'fail:job', 'fail:cancelled', 'reach')
redis.call('HSET', job, 'state', 'queued', 'not_before', 0, 'restart', 1, 'requeued', token, 'attempt', attempts(id))
redis.call('ZADD', prefix .. 'queued', 0, id)
redis.call('HSET', group.key, 'dead', group.dead - 1, 'state', 'open')
redis.call('ZADD', prefix .. 'open:' .. group.purpose, group.seq, group.name)
count('requeued')
if group.state == 'dropped' then
  count('groups_dropped', -1)
  count('dropped', -group.done)
end
return { 'ok' }
