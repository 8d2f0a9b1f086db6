-- Take the role of the reaper, keep it, or hand it over. Belongs to no run.
-- reads and writes  KEYS[1]: rollq:reaper
-- ARGV   worker, milliseconds for which it has the role from now on (0: it hands the role over)
-- reply  0 | milliseconds until another worker's role ends
local holder, left = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
if holder and holder ~= ARGV[1] and left >= 0 then return math.max(left, 1) end
-- Redis refuses SET without memory unless the script has written before.
redis.call('DEL', KEYS[1])
if tonumber(ARGV[2]) > 0 then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return 0
