-- The attempt has failed. A repeat gets the same answer.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> job:<job> group:<group>
-- ARGV   id attempt class reason roll (in [0, 1)) final (1: dead at once)
-- reply  queued not_before | dead 0 | fenced
sound('leased', 'queued', 'dead')
local id, attempt, class = ARGV[1], ARGV[2], ARGV[3]
local job = typed('job:' .. id, 'hash')
if not redis.call('ZSCORE', prefix .. 'leased', id .. '#' .. attempt) then
  local got = redis.call('HMGET', job, 'ended', 'ended_by', 'outcome', 'not_before')
  if got[1] == attempt and got[2] == 'fail' then return { got[3], seconds(moment(got[4])) } end
  return fenced()
end
local group = open_group(id)
local outcome, not_before =
  fail_attempt(id, attempt, group, class, ARGV[4], 'fail', tonumber(ARGV[5]), now(), ARGV[6] == '1')
return { outcome, seconds(not_before) }
