-- The job's message is gone without a claim: publish it again as soon as its backoff allows.
-- reads and writes  queued job:<job>
-- ARGV   id
-- reply  ok
local queued, job = typed('queued', 'zset'), typed('job:' .. ARGV[2], 'hash')
local not_before = backoff_end(redis.call('HGET', job, 'not_before'), now())
even_without_memory()
redis.call('ZADD', queued, 'XX', 'LT', not_before, ARGV[2])
return { 'ok' }
