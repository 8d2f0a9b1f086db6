-- Keep a batch held for longer.
-- reads and writes  held:<purpose> hold:<token> group:<group>
-- ARGV   token hold_s
-- reply  ok | lost
local groups, until_ = {}, now() + tonumber(ARGV[2])
for _, name in ipairs(redis.call('SMEMBERS', typed('hold:' .. ARGV[1], 'set'))) do
  groups[#groups + 1] = read_group(name)
end
if #groups == 0 then return { 'lost' } end
even_without_memory()
for _, group in ipairs(groups) do
  redis.call('ZADD', prefix .. 'held:' .. group.purpose, 'XX', 'GT', until_, group.name)
end
return { 'ok' }
