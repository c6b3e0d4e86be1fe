-- What jobs keep is sealed under versions of the data key, and found by its rotation.
CALL declare_sealed('function_jobs', 'sealed_request');
CALL declare_sealed('function_jobs', 'sealed_input');
CALL declare_sealed('function_jobs', 'sealed_result');
