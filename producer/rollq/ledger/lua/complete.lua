-- Journal the last event and end the job as done. A repeat by the attempt that ended it gets the same answer.
-- reads and writes  run leased count ready:<purpose> open:<purpose> job:<job> journal:<job> group:<group>
-- ARGV   id attempt index blob tally (what the job adds to the totals)
-- reply  ok | fenced | conflict length
check_indexes()
local id, attempt, index, blob, added = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local leased, member = prefix .. 'leased', id .. '#' .. attempt
local job, journal = typed('job:' .. id, 'hash'), typed('journal:' .. id, 'list')
local state, ended, ended_by, kept, turned =
  unpack(redis.call('HMGET', job, 'state', 'ended', 'ended_by', 'kept', 'turned'))
if state ~= 'leased' or not redis.call('ZSCORE', leased, member) then
  if ended == attempt and ended_by == 'complete' then return { 'ok' } end
  return fenced()
end
local length = redis.call('LLEN', journal)
if index ~= length then return { 'conflict', length } end
local group = open_group(id)

allow_without_memory()
redis.call('RPUSH', journal, blob)
redis.call('ZREM', leased, member)
redis.call('HSET', job, 'state', 'done', 'ended', attempt, 'ended_by', 'complete')
redis.call('HSET', group.key, 'tally:' .. select(2, parse(id)), added)
settle(group, 'done')
count('done')
if index == whole(kept, 2, MOST) then resumed(turned) end
tally(added, 1)
return { 'ok' }
