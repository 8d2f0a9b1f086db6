-- Keep the experts that tokens were routed to: a part for each sampled event, from part `index` on. A part that is
-- there already was written by an attempt that ended before it journaled the event.
-- reads and writes  run leased count routed_experts:<job>
-- ARGV   id lease index, then the parts
-- reply  ok | fenced | conflict length (Redis lost parts)
local id, lease, index = ARGV[2], ARGV[3], tonumber(ARGV[4])
if not redis.call('ZSCORE', typed('leased', 'zset'), id .. '#' .. lease) then return fenced() end
local kept = typed('routed_experts:' .. id, 'list')
local length = redis.call('LLEN', kept)
if index > length then return { 'conflict', length } end
allow_without_memory()
if index == 0 then
  redis.call('DEL', kept)
elseif index < length then
  redis.call('LTRIM', kept, 0, index - 1)
end
for i = 5, #ARGV do redis.call('RPUSH', kept, ARGV[i]) end
return { 'ok' }
