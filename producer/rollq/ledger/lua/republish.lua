-- The job's message is gone without a claim: publish it again as soon as its backoff allows.
-- reads and writes  queued job:<job>
-- ARGV   id
-- reply  ok
sound('queued')
local not_before = moment(redis.call('HGET', typed('job:' .. ARGV[1], 'hash'), 'not_before'))
even_without_memory()
redis.call('ZADD', prefix .. 'queued', 'XX', 'LT', not_before, ARGV[1])
return { 'ok' }
