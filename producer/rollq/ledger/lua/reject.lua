-- A consumer cannot read a done job that it holds: the job is dead, and the whole hold goes back untouched.
-- reads and writes  dead count open:<purpose> ready:<purpose> held:<purpose> holds:<purpose> waiting:<purpose>
--                   hold:<token> wake:<session> consumer:<purpose>:<name> group:<group> job:<job>
-- ARGV   token owner id reason
-- reply  ok | lost | fenced
local token, owner, id, why = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local mine, sample = parse(id)
if taken_over(token, owner) then return { 'fenced' } end
local groups, held = held_groups(token), false
for _, group in ipairs(groups) do held = held or group.name == mine end
if not held or field('job:' .. id, 'state') == 'dead' then
  return { field('job:' .. id, 'condemned') == token and 'ok' or 'lost' }
end

local added = redis_call('HGET', prefix .. 'group:' .. mine, 'tally:' .. sample)
allow_without_memory()
local job = prefix .. 'job:' .. id
local failures = number(redis_call('HGET', job, 'fail:job'), job) + 1
redis_call('HSET', job, 'state', 'dead', 'ended_by', 'reject', 'class', 'job', 'reason', why, 'fail:job', failures,
  'condemned', token)
redis_call('ZADD', prefix .. 'dead', now(), id)
for _, group in ipairs(groups) do
  redis_call('ZREM', prefix .. 'held:' .. group.purpose, group.name)
  redis_call('HSET', group.key, 'handed', math.max(0, group.handed - 1))
  if group.name == mine then
    group.done = math.max(0, group.done - 1)
    redis_call('HSET', group.key, 'done', group.done)
    redis_call('HDEL', group.key, 'tally:' .. sample)
    settle(group, 'dead')
  else
    redis_call('HSET', group.key, 'state', 'ready')
    redis_call('ZADD', prefix .. 'ready:' .. group.purpose, group.seq, group.name)
  end
end
end_hold(groups[1].purpose, token)
tally(added or '', -1, '')
tally(added or '', 1, 'rejected:')
wake_consumers(groups[1].purpose)
count('failures:job')
return { 'ok' }
