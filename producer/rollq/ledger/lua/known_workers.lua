-- Workers that were heard of lately; the entries of others are removed. Belongs to no run.
-- reads and writes  KEYS[1]: rollq:workers
-- ARGV   the age in seconds at which an entry is removed
-- reply  name, entry (workers/live_workers.py), its age in seconds, name, entry, age, ...
local time, known, all = tonumber(redis.call('TIME')[1]), {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local read, at, entry = pcall(cmsgpack.unpack, all[i + 1])
  -- From the future: Redis's clock was set back. A live worker registers again soon.
  if read and type(at) == 'number' and type(entry) == 'string' and at <= time + 1 and time - at <= tonumber(ARGV[1]) then
    known[#known + 1], known[#known + 2], known[#known + 3] = all[i], entry, time - at
  else
    redis.pcall('HDEL', KEYS[1], all[i]) -- a Redis that takes no writes can still be looked at
  end
end
return known
