-- Keep a field of a hash: a trainer's or an evaluation's result. It is stored before its groups are acknowledged, and
-- only that makes room again.
-- reads and writes  solved evaluation
-- ARGV   hash field value
-- reply  ok
local key = prefix .. ARGV[2]
allow_without_memory()
redis_call('HSET', key, ARGV[3], ARGV[4])
return { 'ok' }
