-- Take the role of the reaper, keep it, or hand it over. Belongs to no run.
-- reads and writes  KEYS[1]: rollq:reaper
-- ARGV   worker, milliseconds for which it has the role from now on (0: it hands the role over)
-- reply  0 | milliseconds until another worker's role ends
local holder, left, longest = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
-- A role that lasts longer than one can: Redis's clock was set back.
local lasts = left >= 0 and (longest == 0 or left <= longest)
if holder and holder ~= ARGV[1] and lasts then return math.max(left, 1) end
-- Redis refuses SET without memory unless the script has written before.
redis.call('DEL', KEYS[1])
if longest > 0 then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return 0
