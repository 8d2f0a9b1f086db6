-- Keep a batch held for longer.
-- reads and writes  held:<purpose> hold:<token> group:<group>
-- ARGV   token hold_s
-- reply  ok | lost
check_indexes()
local time = now()
local groups, until_ = held_groups(ARGV[2], time), time + tonumber(ARGV[3])
if #groups == 0 then return { 'lost' } end
allow_without_memory()
for _, group in ipairs(groups) do
  redis.call('ZADD', prefix .. 'held:' .. group.purpose, 'XX', 'GT', until_, group.name)
end
return { 'ok' }
