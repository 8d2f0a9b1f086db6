-- The jobs were published: look again much later.
-- reads and writes  queued job:<job>
-- ARGV   ids
-- reply  ok
local queued, time = typed('queued', 'zset'), now()
even_without_memory()
for i = 2, #ARGV do
  -- Only while it counts as being published: claimed, released, bounced or failed since, it has its own time.
  local score = moment(redis.call('ZSCORE', queued, ARGV[i]))
  local not_before = moment(field('job:' .. ARGV[i], 'not_before'))
  if score > time and score <= time + constants.publishing_s and not_before <= time then
    redis.call('ZADD', queued, time + constants.confirmed_s, ARGV[i])
  end
end
return { 'ok' }
