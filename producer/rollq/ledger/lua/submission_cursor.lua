-- How far a source got: what its producer need not send again. Those jobs count as submitted again, once a token.
-- reads and writes  sources count
-- ARGV   source token
-- reply  groups jobs mark (of the last of those groups)
local sources = typed('sources', 'hash')
local groups, jobs, mark = string.match(redis.call('HGET', sources, ARGV[1]) or '', '^(%d+) (%d+) (%x+)$')
groups, jobs = whole(groups, 0, MOST), whole(jobs, 0, MOST)
if not groups or not jobs then return { 0, 0, '' } end
if redis.call('HGET', sources, ARGV[1] .. '#') ~= ARGV[2] then
  redis.call('HSET', sources, ARGV[1] .. '#', ARGV[2])
  count('resubmitted', jobs)
end
return { groups, jobs, mark }
