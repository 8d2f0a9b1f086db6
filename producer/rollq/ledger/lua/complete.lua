-- Journal the last entries and end the job as done. A repeat by the attempt that ended it gets the same answer.
-- reads and writes  run leased count ready:<purpose> open:<purpose> waiting:<purpose> wake:<token> job:<job>
--                   journal:<job> prompts:<group> group:<group>
-- ARGV   id lease index tally (what the job adds to the totals), then the entries (journal.lua)
-- reply  ok | fenced | conflict length
check_indexes()
local id, lease, index, added, entries = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], read_entries(6)
local leased, held = prefix .. 'leased', id .. '#' .. lease
local job, journal = typed('job:' .. id, 'hash'), typed('journal:' .. id, 'list')
typed('prompts:' .. parse(id), 'hash')
local state, ended, ended_by = unpack(redis.call('HMGET', job, 'state', 'ended', 'ended_by'))
if state ~= 'leased' or not redis.call('ZSCORE', leased, held) then
  if ended == lease and ended_by == 'complete' then return { 'ok' } end
  return fenced()
end
local length, unfit = conflict(journal, index, entries)
if unfit or length >= index + entries.count then return { 'conflict', length } end
local group = open_group(id)

allow_without_memory()
push(id, job, journal, index, length, entries)
redis.call('ZREM', leased, held)
redis.call('HSET', job, 'state', 'done', 'ended', lease, 'ended_by', 'complete')
redis.call('HSET', group.key, 'tally:' .. select(2, parse(id)), added)
settle(group, 'done')
count('done')
tally(added, 1)
return { 'ok' }
