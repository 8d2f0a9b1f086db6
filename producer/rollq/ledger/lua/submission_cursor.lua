-- How far a source got: its producer need not send those groups again. Their jobs count as submitted again, once per
-- token.
-- reads and writes  sources count
-- ARGV   source token
-- reply  ok groups jobs mark (of the last of those groups)
local sources, source, token = prefix .. 'sources', ARGV[2], ARGV[3]
local groups, jobs, mark = read_cursor(source)
if groups > 0 and redis_call('HGET', sources, source .. '#') ~= token then
  redis_call('HSET', sources, source .. '#', token)
  count('resubmitted', jobs)
end
return { 'ok', 'groups', groups, 'jobs', jobs, 'mark', mark }
