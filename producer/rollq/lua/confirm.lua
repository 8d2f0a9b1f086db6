-- The jobs were published: look again much later.
-- reads and writes  queued job:<job>
-- ARGV   publishing_s confirmed_s, then ids
-- reply  ok
sound('queued')
local time = now()
even_without_memory()
for i = 3, #ARGV do
  -- Only while it counts as being published: claimed, released, bounced or failed since, it has its own time.
  local score = tonumber(redis.call('ZSCORE', prefix .. 'queued', ARGV[i]) or nil)
  local not_before = redis.pcall('HGET', prefix .. 'job:' .. ARGV[i], 'not_before')
  not_before = type(not_before) == 'string' and tonumber(not_before) or 0
  if score and score > time and score <= time + tonumber(ARGV[1]) and not_before <= time then
    redis.call('ZADD', prefix .. 'queued', time + tonumber(ARGV[2]), ARGV[i])
  end
end
return { 'ok' }
