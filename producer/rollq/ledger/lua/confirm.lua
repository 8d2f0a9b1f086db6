-- The jobs were published: look again much later.
-- reads and writes  queued job:<job>
-- ARGV   publishing_s confirmed_s, then ids
-- reply  ok
sound('queued')
local time = now()
even_without_memory()
for i = 3, #ARGV do
  -- Only while it counts as being published: claimed, released, bounced or failed since, it has its own time.
  local score = finite(redis.call('ZSCORE', prefix .. 'queued', ARGV[i]))
  local not_before = moment(field('job:' .. ARGV[i], 'not_before'))
  if score and score > time and score <= time + tonumber(ARGV[1]) and not_before <= time then
    redis.call('ZADD', prefix .. 'queued', time + tonumber(ARGV[2]), ARGV[i])
  end
end
return { 'ok' }
