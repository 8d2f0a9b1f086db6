-- Keep arrays beside a job's journal. They are the attempt's that ends the job; those of another attempt go.
-- reads and writes  run leased count extras:<job>
-- ARGV   id lease, then for each array: name blob
-- reply  ok | fenced
local id, lease = ARGV[2], ARGV[3]
if not redis_call('ZSCORE', prefix .. 'leased', id .. '#' .. lease) then return fenced() end
local extras = prefix .. 'extras:' .. id
redis_call('DEL', extras)
redis_call('HSET', extras, '#', lease)
for i = 4, #ARGV, 2 do redis_call('HSET', extras, ARGV[i], ARGV[i + 1]) end
return { 'ok' }
