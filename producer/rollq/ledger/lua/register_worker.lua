-- A worker says that it lives, and what it plays. Belongs to no run.
-- reads and writes  KEYS[1]: rollq:workers
-- ARGV   name, its entry (workers/live_workers.py)
-- reply  ok
local time = redis.call('TIME')
-- Redis refuses HSET without memory unless the script has written before.
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(tonumber(time[1]), ARGV[2]))
return { 'ok' }
