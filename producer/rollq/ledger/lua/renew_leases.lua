-- Extend many leases in one call, none past its attempt's deadline. The worker says how far that is, by a clock that
-- does not jump and stands still while the engine or Redis is away.
-- reads and writes  leased
-- ARGV   for each lease: id lease left_s (until its deadline)
-- reply  ok lost (positions from 0 of the leases that are)
local leased, time, lost = prefix .. 'leased', now(), {}
allow_without_memory()
for i = 2, #ARGV, 3 do
  local member = ARGV[i] .. '#' .. ARGV[i + 1]
  if redis_call('ZSCORE', leased, member) then
    redis_call('ZADD', leased, 'XX', 'GT', time + math.min(constants.lease_s, tonumber(ARGV[i + 2])), member)
  else
    lost[#lost + 1] = (i - 2) / 3
  end
end
return { 'ok', 'lost', lost }
