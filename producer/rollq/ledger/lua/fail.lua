-- The attempt has failed. A repeat gets the same answer.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> waiting:<purpose> wake:<token> job:<job>
--                   group:<group>
-- ARGV   id lease class reason roll (in [0, 1))
-- reply  queued not_before | dead not_before | fenced
local id, lease, class, why, roll = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local job = prefix .. 'job:' .. id
local state, ended, ended_by, outcome, not_before =
  unpack(redis_call('HMGET', job, 'state', 'ended', 'ended_by', 'outcome', 'not_before'))
if state ~= 'leased' or not redis_call('ZSCORE', prefix .. 'leased', id .. '#' .. lease) then
  if ended == lease and ended_by == 'fail' then return { outcome, 'not_before', seconds(number(not_before, job)) } end
  return fenced()
end
outcome, not_before = fail_attempt(id, lease, group_of(id), class, why, 'fail', roll, now())
return { outcome, 'not_before', seconds(not_before) }
