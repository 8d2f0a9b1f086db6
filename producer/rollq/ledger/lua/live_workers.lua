-- The live workers; the entries of dead ones are removed. Belongs to no run.
-- reads and writes  KEYS[1]: rollq:workers
-- ARGV   the age in seconds at which an entry is a dead worker's
-- reply  name, entry (workers/live_workers.py), its age in seconds, name, entry, age, ...
local time, live, all = tonumber(redis.call('TIME')[1]), {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local read, at, entry = pcall(cmsgpack.unpack, all[i + 1])
  -- From the future: Redis's clock was set back. A live worker registers again soon.
  if read and type(at) == 'number' and type(entry) == 'string' and at <= time + 1 and time - at <= tonumber(ARGV[1]) then
    live[#live + 1], live[#live + 2], live[#live + 3] = all[i], entry, time - at
  else
    redis.pcall('HDEL', KEYS[1], all[i]) -- a Redis that takes no writes can still be looked at
  end
end
return live
