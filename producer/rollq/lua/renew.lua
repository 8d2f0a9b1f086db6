-- Extend many leases in one call, none past its job's deadline.
-- reads and writes  leased job:<job>
-- ARGV   lease_s, then for each lease: id attempt stopped_s (for so long its deadline's clock stood still)
-- reply  the positions (from 0) of the leases that are lost
sound('leased')
local time, lost = now(), {}
even_without_memory()
local until_ = time + tonumber(ARGV[1])
for i = 2, #ARGV, 3 do
  local id, member = ARGV[i], ARGV[i] .. '#' .. ARGV[i + 1]
  if redis.call('ZSCORE', prefix .. 'leased', member) then
    local deadline = redis.pcall('HGET', prefix .. 'job:' .. id, 'deadline')
    deadline = (type(deadline) == 'string' and tonumber(deadline) or time) + tonumber(ARGV[i + 2])
    redis.call('ZADD', prefix .. 'leased', 'XX', 'GT', math.min(until_, deadline), member)
  else
    lost[#lost + 1] = (i - 2) / 3
  end
end
return lost
