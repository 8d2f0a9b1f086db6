-- Stamps that a reaper reached Redis, and tells until when leases may expire. After a silence of all reapers either
-- Redis or all workers were away, so live workers get the time to renew their leases first.
-- Its key belongs to no run, so it shares nothing with the other scripts.
-- reads and writes  rollq:pulse
-- ARGV   outage_s (longest silence) grace_s
-- reply  until when leases may expire, on Redis's clock; 0: not for now
local time = redis.call('TIME')
time = tonumber(time[1]) + tonumber(time[2]) / 1000000
local got = redis.pcall('HMGET', KEYS[1], 'beat', 'grace')
local beat, grace = tonumber(got[1] or nil) or 0, tonumber(got[2] or nil) or 0
local silence = time - beat
-- A silence below 0 means that the clock was set back, so every lease ends later than it should.
if silence < 0 or silence > tonumber(ARGV[1]) then grace = time + tonumber(ARGV[2]) end
grace = math.min(grace, time + tonumber(ARGV[2]))
redis.call('DEL', KEYS[1]) -- first, so that a Redis that is out of memory takes the rest; whatever lay there
redis.call('HSET', KEYS[1], 'beat', time, 'grace', grace)
return time < grace and '0' or string.format('%.6f', time + tonumber(ARGV[1]))
