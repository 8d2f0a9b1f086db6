-- Journal the last entries and end the job as done. A repeat by the attempt that ended it gets the same answer.
-- reads and writes  run leased count ready:<purpose> open:<purpose> waiting:<purpose> wake:<token> job:<job>
--                   journal:<job> prompts:<group> group:<group>
-- ARGV   id lease index tally (what the job adds to the totals), then the entries (journal.lua)
-- reply  ok | fenced | conflict length (of the journal)
local id, lease, index, added, entries = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], read_entries(6)
local job, journal, held = prefix .. 'job:' .. id, prefix .. 'journal:' .. id, id .. '#' .. lease
local leased = redis_call('ZSCORE', prefix .. 'leased', held)
local got = redis_call('HMGET', job, 'state', 'ended', 'ended_by', 'reach', 'kept', 'turned')
if got[1] ~= 'leased' or not leased then
  if got[2] == lease and got[3] == 'complete' then return { 'ok' } end
  return fenced()
end
local length, unfit = conflict(journal, index, entries)
if unfit or length >= index + entries.count then return { 'conflict', 'length', length } end
local group = group_of(id)
local over = group.done + 1 >= group.size or group.done + group.dead + group.surplus + 1 >= group.members

allow_without_memory()
local changes = push(id, journal, index, length, entries, got[4], got[5], got[6])
redis_call('ZREM', prefix .. 'leased', held)
redis_call('HSET', job, 'state', 'done', 'ended', lease, 'ended_by', 'complete', unpack(changes))
local sample = 'tally:' .. string.match(id, '%d+$')
if over then
  -- rare: the group ends
  settle(group, 'done', sample, added)
else
  redis_call('HSET', group.key, 'done', group.done + 1, sample, added)
end
tally(added, 1, '')
return { 'ok' }
