//! Tests parsers with generated inputs, for the tests of the other crates.
//!
//! An input is an example from `tests/fuzz/corpus/TARGET` with a few random changes. In a normal test run, the inputs
//! are the same every time. `make fuzz-parsers` looks for new ones.

mod changes;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// The number of generated inputs for each target in a normal test run.
const INPUTS: u32 = 2_000;
/// The number of inputs that are generated from one seed.
const INPUTS_PER_SEED: u32 = 500;
/// How many seconds to generate inputs for each target. `make fuzz-parsers` sets it.
const SECONDS: &str = "SYNCLINE_FUZZ_SECONDS";
/// The first seed. A failure prints it.
const SEED: &str = "SYNCLINE_FUZZ_SEED";
/// The maximum time for one input, which has at most 32 KiB. Most take less than a millisecond. A parser whose time
/// grows with the square of the length takes longer.
const MAX_TIME: Duration = Duration::from_secs(1);
/// A slow input is repeated, because another process may have used the processor.
const ATTEMPTS: u32 = 3;

/// Checks a property of a parser that reads bytes. The property panics if it does not hold.
pub fn check(target: &str, property: impl Fn(&[u8])) {
    let examples = read_examples(target);
    for (name, example) in &examples {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&property, example))) {
            eprintln!("the property does not hold for tests/fuzz/corpus/{target}/{name}");
            resume_unwind(panic);
        }
    }
    let examples: Vec<Vec<u8>> = examples.into_iter().map(|(_, example)| example).collect();
    let time = number(SECONDS).map(Duration::from_secs);
    let seed = number(SEED).unwrap_or_else(|| time.map_or(1, |_| new_seed()));
    let start = Instant::now();
    let mut inputs = 0;
    for round in 0.. {
        let is_done = time.map_or(inputs >= INPUTS, |time| start.elapsed() >= time);
        if is_done {
            break;
        }
        check_round(target, seed.wrapping_add(round), &examples, &property);
        inputs += INPUTS_PER_SEED;
    }
    println!("{target}: {inputs} inputs in {} s from seed {seed}", start.elapsed().as_secs());
}

/// Checks a property of a parser that reads text.
pub fn check_text(target: &str, property: impl Fn(&str)) {
    check(target, |input| property(&String::from_utf8_lossy(input)));
}

fn check_round(target: &str, seed: u64, examples: &[Vec<u8>], property: &impl Fn(&[u8])) {
    let config = Config {
        cases: INPUTS_PER_SEED,
        failure_persistence: None,
        max_shrink_iters: 4 * INPUTS_PER_SEED,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let result = runner.run(&changes::inputs(examples.len()), |changed| {
        let input = changed.apply(examples);
        catch_unwind(AssertUnwindSafe(|| run(property, &input)))
            .map_err(|panic| TestCaseError::fail(message(panic.as_ref())))
    });
    if let Err(TestError::Fail(reason, changed)) = result {
        let input = changed.apply(examples);
        let file = std::env::temp_dir().join(format!("syncline-fuzz-{target}"));
        let saved = match fs::write(&file, &input) {
            Ok(()) => format!("copy {} to tests/fuzz/corpus/{target}", file.display()),
            Err(error) => format!("{} could not be written: {error}", file.display()),
        };
        panic!(
            "the property does not hold for this input of {SEED}={seed}; {saved}\n{}\n{reason}",
            input.escape_ascii()
        );
    }
}

/// Checks the property, and that it takes little time.
fn run(property: &impl Fn(&[u8]), input: &[u8]) {
    let is_fast = (0..ATTEMPTS).any(|_| {
        let start = Instant::now();
        property(input);
        start.elapsed() < MAX_TIME
    });
    assert!(is_fast, "an input of {} bytes takes longer than {MAX_TIME:?}", input.len());
}

/// Returns the names and contents of the target's examples, by name.
fn read_examples(target: &str) -> Vec<(String, Vec<u8>)> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fuzz/corpus").join(target);
    let entries = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let mut examples: Vec<_> = entries
        .map(|entry| {
            let entry = entry.expect("the corpus can be listed");
            let content = fs::read(entry.path()).expect("an example can be read");
            (entry.file_name().to_string_lossy().into_owned(), content)
        })
        .collect();
    examples.sort();
    assert!(!examples.is_empty(), "{} has no examples", corpus.display());
    examples
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a whole number (got `{text}`)")))
}

fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs() * 1_000_000)
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}
