// The page of `rollq show --html`: one rollout, from the data in the file itself.
'use strict';

const shown = JSON.parse(document.getElementById('data').textContent);
document.getElementById('page').append(rolloutPage(shown));
turnKeys(() => true);
