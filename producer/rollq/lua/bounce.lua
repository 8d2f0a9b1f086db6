-- The job's message is gone without a claim: publish it again as soon as its backoff allows.
-- reads and writes  queued job:<job>
-- ARGV   id
-- reply  ok
sound('queued')
local not_before = tonumber(redis.call('HGET', typed('job:' .. ARGV[1], 'hash'), 'not_before')) or 0
even_without_memory()
redis.call('ZADD', prefix .. 'queued', 'XX', 'LT', not_before, ARGV[1])
return { 'ok' }
