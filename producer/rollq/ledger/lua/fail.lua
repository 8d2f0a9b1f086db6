-- The attempt has failed. A repeat gets the same answer.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> waiting:<purpose> wake:<token> job:<job>
--                   group:<group>
-- ARGV   id lease class reason roll (in [0, 1)) final (1: dead at once)
-- reply  queued not_before | dead 0 | fenced
check_indexes()
local id, lease, class, why, roll, final = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'
local job = typed('job:' .. id, 'hash')
local state, ended, ended_by, outcome, not_before =
  unpack(redis.call('HMGET', job, 'state', 'ended', 'ended_by', 'outcome', 'not_before'))
if state ~= 'leased' or not redis.call('ZSCORE', prefix .. 'leased', id .. '#' .. lease) then
  if ended == lease and ended_by == 'fail' then return { outcome, seconds(stored_number(not_before)) } end
  return fenced()
end
outcome, not_before = fail_attempt(id, lease, open_group(id), class, why, 'fail', roll, now(), final)
return { outcome, seconds(not_before) }
