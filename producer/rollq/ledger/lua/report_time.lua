-- Note what a worker's episodes of this run have spent their time with. A run that was dropped gets no key again.
-- reads and writes  run spent
-- ARGV   worker seconds (rollq.ledger.workers.time_spent, as text)
-- reply  ok
if redis_call('EXISTS', prefix .. 'run') == 1 then redis_call('HSET', prefix .. 'spent', ARGV[2], ARGV[3]) end
return { 'ok' }
