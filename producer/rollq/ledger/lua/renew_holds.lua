-- Keep the batches of one consumer held for longer.
-- reads and writes  held:<purpose> holds:<purpose> hold:<token> consumer:<purpose>:<name> run
-- ARGV   purpose hold_s owner ('': no name) tokens
-- reply  ok lost (positions from 0 of the holds that are)
local purpose, hold_s, owner, time, lost = ARGV[2], tonumber(ARGV[3]), ARGV[4], now(), {}
allow_without_memory()
for i = 5, #ARGV do
  local names = redis_call('SMEMBERS', prefix .. 'hold:' .. ARGV[i])
  if #names == 0 or taken_over(ARGV[i], owner) then
    lost[#lost + 1] = i - 5
  else
    renew_hold(purpose, ARGV[i], names, time, hold_s)
  end
end
return { 'ok', 'lost', lost }
