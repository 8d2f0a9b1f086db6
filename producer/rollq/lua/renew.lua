-- Extend many leases in one call, none past its job's deadline.
-- reads and writes  leased job:<job>
-- ARGV   lease_s, then for each lease: id attempt
-- reply  the positions (from 0) of the leases that are lost
sound('leased')
local until_, time, lost = nil, now(), {}
until_ = time + tonumber(ARGV[1])
for i = 2, #ARGV, 2 do
  local id, member = ARGV[i], ARGV[i] .. '#' .. ARGV[i + 1]
  if redis.call('ZSCORE', prefix .. 'leased', member) then
    local deadline = redis.pcall('HGET', prefix .. 'job:' .. id, 'deadline')
    deadline = type(deadline) == 'string' and tonumber(deadline) or time
    redis.call('ZADD', prefix .. 'leased', 'XX', 'GT', math.min(until_, deadline), member)
  else
    lost[#lost + 1] = (i - 2) / 2
  end
end
return lost
