-- A worker took the job's message and did not claim the job: publish it again as soon as its backoff allows.
-- reads and writes  queued job:<job>
-- ARGV   id
-- reply  ok
local queued, job = typed('queued', 'zset'), typed('job:' .. ARGV[2], 'hash')
local not_before = backoff_end(redis.call('HGET', job, 'not_before'), now())
allow_without_memory()
redis.call('ZADD', queued, 'XX', 'LT', not_before, ARGV[2])
return { 'ok' }
