//! The documentation: links are valid, and everything that code blocks name exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use serde_json::Value;
use syncline_types::audit_log::AuditAction;

use crate::support::{Host, TestDatabase, between, repository};

/// A page with everything that the tests check.
struct Page {
    path: PathBuf,
    headings: BTreeSet<String>,
    links: Vec<String>,
    code_blocks: Vec<CodeBlock>,
}

struct CodeBlock {
    language: String,
    text: String,
}

/// Every Markdown file of the project.
fn pages() -> Vec<Page> {
    let mut pages: Vec<_> =
        tracked_files().into_iter().filter(|path| has_extension(path, "md")).map(read_page).collect();
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(pages.len() > 20, "only {} pages were found", pages.len());
    pages
}

/// The files of the repository, without build output.
fn tracked_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![repository("")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be read") {
            let entry = entry.expect("the folder can be read");
            let name = entry.file_name();
            let is_built = ["target", "node_modules", "build"].iter().any(|built| name == *built);
            let is_hidden = name.to_string_lossy().starts_with('.');
            if is_built || is_hidden {
                continue;
            }
            match entry.file_type().expect("the entry has a type") {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

fn read_page(path: PathBuf) -> Page {
    let text = std::fs::read_to_string(&path).expect("the page is text");
    let mut page = Page { path, headings: BTreeSet::new(), links: Vec::new(), code_blocks: Vec::new() };
    let (mut heading, mut block) = (None::<String>, None::<CodeBlock>);
    for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                page.headings.insert(unique_anchor(anchor, &page.headings));
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.to_string());
            }
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                block = Some(CodeBlock { language: language.to_string(), text: String::new() });
            }
            Event::End(TagEnd::CodeBlock) => page.code_blocks.extend(block.take()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(block) = &mut block {
                    block.text.push_str(&text);
                } else if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    page
}

/// The fragment by which GitHub links to a heading.
fn anchor(heading: &str) -> String {
    let slug = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .collect::<String>();
    slug.replace(' ', "-")
}

/// The anchor, with a number appended if an earlier heading has it already.
fn unique_anchor(anchor: String, taken: &BTreeSet<String>) -> String {
    let numbered = (1..).map(|number| format!("{anchor}-{number}"));
    std::iter::once(anchor.clone()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or(anchor)
}

#[test]
fn every_link_points_to_an_existing_file_and_heading() {
    let pages = pages();
    let headings: BTreeMap<_, _> = pages.iter().map(|page| (page.path.clone(), &page.headings)).collect();
    let mut broken = Vec::new();
    for page in &pages {
        for link in page.links.iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            let (file, fragment) =
                link.split_once('#').map_or((&**link, None), |(file, part)| (file, Some(part)));
            let target = match file {
                "" => page.path.clone(),
                file => page.path.parent().expect("a file has a folder").join(file),
            };
            let Ok(target) = target.canonicalize() else {
                broken.push(format!("{}: {link}", page.path.display()));
                continue;
            };
            let has_heading = |part| headings.get(&target).is_none_or(|headings| headings.contains(part));
            if !fragment.is_none_or(has_heading) {
                broken.push(format!("{}: {link} (there is no such heading)", page.path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn pages_named_in_source_files_exist() {
    let pattern =
        regex::Regex::new(r"\bdocs/[A-Za-z0-9_/-]+\.(?:md|json|png|svg)").expect("the pattern is valid");
    let mut missing = Vec::new();
    for path in tracked_files() {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for page in pattern.find_iter(&text) {
            if !repository(page.as_str()).exists() {
                missing.push(format!("{}: {}", path.display(), page.as_str()));
            }
        }
    }
    assert!(missing.is_empty(), "pages that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn documented_command_lines_use_existing_commands_and_options() {
    let mut wrong = Vec::new();
    let mut known = BTreeMap::new();
    for page in pages().iter().filter(|page| !page.path.ends_with("CHANGELOG.md")) {
        for line in command_lines(page) {
            let mut words = line
                .split_whitespace()
                .skip_while(|word| *word != "syncline" && !word.ends_with("/syncline"));
            if words.next().is_none() {
                continue;
            }
            let words: Vec<_> = words
                .take_while(|word| !matches!(*word, "|" | ">" | "2>&1" | "&" | "&&" | ";" | "\\"))
                .collect();
            if let Err(problem) = check_command(&words, &mut known) {
                wrong.push(format!("{}: `{line}`: {problem}", page.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "commands that do not exist:\n{}", wrong.join("\n"));
}

/// The lines of a page's shell blocks that call the `syncline` program.
fn command_lines(page: &Page) -> Vec<String> {
    let is_call = |line: &&str| {
        let first = line.split_whitespace().find(|word| !word.contains('=') || word.starts_with('-'));
        first.is_some_and(|word| word == "syncline" || word.ends_with("/syncline"))
    };
    let shell = page.code_blocks.iter().filter(|block| matches!(&*block.language, "sh" | "bash" | "console"));
    shell
        .flat_map(|block| block.text.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>())
        .map(|line| line.trim_start_matches("$ ").to_owned())
        .filter(|line| is_call(&line.as_str()))
        .collect()
}

/// Checks the subcommands and long options of a command line against `--help`.
fn check_command(words: &[&str], known: &mut BTreeMap<Vec<String>, String>) -> Result<(), String> {
    let mut path = Vec::new();
    let mut help = help_of(&path, known);
    for word in words {
        if let Some(option) = word.strip_prefix("--") {
            let option = option.split('=').next().unwrap_or(option);
            if !help.contains(&format!("--{option}")) && option != "help" && option != "version" {
                return Err(format!("there is no option `--{option}`"));
            }
        } else if help.contains("\nCommands:\n") {
            let is_command = help
                .lines()
                .any(|line| line.starts_with("  ") && line.split_whitespace().next() == Some(*word));
            if !is_command {
                return Err(format!("there is no command `{word}`"));
            }
            path.push((*word).to_owned());
            help = help_of(&path, known);
        }
    }
    Ok(())
}

fn help_of(path: &[String], known: &mut BTreeMap<Vec<String>, String>) -> String {
    let run = || {
        let output = Command::new(env!("CARGO_BIN_EXE_syncline"))
            .args(path)
            .arg("--help")
            .output()
            .expect("the program can be run");
        String::from_utf8(output.stdout).expect("the help is text")
    };
    known.entry(path.to_vec()).or_insert_with(run).clone()
}

#[test]
fn documented_requests_use_existing_routes() {
    let document = std::fs::read_to_string(repository("docs/openapi.json")).expect("the document exists");
    let document: Value = serde_json::from_str(&document).expect("the document is JSON");
    let routes: Vec<String> = document["paths"].as_object().expect("it has paths").keys().cloned().collect();
    let pattern = regex::Regex::new(r#"\$\{?SYNCLINE_URL\}?(/[^\s"'?`\\)]*)"#).expect("the pattern is valid");
    let mut wrong = Vec::new();
    for page in pages() {
        for block in &page.code_blocks {
            for request in pattern.captures_iter(&block.text) {
                let path = request[1].trim_end_matches('/');
                let extra = ["", "/docs", "/openapi.json", "/metrics", "/connect", "/mcp"];
                if !extra.contains(&path) && !routes.iter().any(|route| matches_route(route, path)) {
                    wrong.push(format!("{}: {path}", page.path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "routes that do not exist:\n{}", wrong.join("\n"));
}

/// Whether a path matches a route such as `/runs/{id}`. `/proxy/{path}` matches any number of segments.
fn matches_route(route: &str, path: &str) -> bool {
    if route.starts_with("/proxy/") && path.starts_with("/proxy/") {
        return true;
    }
    let (route, path): (Vec<_>, Vec<_>) = (route.split('/').collect(), path.split('/').collect());
    route.len() == path.len()
        && route.iter().zip(&path).all(|(part, word)| part.starts_with('{') || part == word)
}

#[test]
fn documented_configuration_keys_exist() {
    let mut wrong = Vec::new();
    for page in pages() {
        for block in page
            .code_blocks
            .iter()
            .filter(|block| block.language == "toml" && block.text.contains("[integrations."))
        {
            let folder = tempfile::TempDir::new().expect("a temporary folder can be made");
            std::fs::write(folder.path().join("syncline.toml"), &block.text).expect("the folder is writable");
            let output = Command::new(env!("CARGO_BIN_EXE_syncline"))
                .args(["check", "--no-build"])
                .arg(folder.path())
                .output();
            let output = output.expect("the program can be run");
            let printed = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            for line in printed.lines().filter(|line| line.contains("unknown key")) {
                wrong.push(format!("{}: {line}", page.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "keys that do not exist:\n{}", wrong.join("\n"));
}

#[test]
fn the_cli_reference_names_every_command_and_option() {
    let read = |page: &str| std::fs::read_to_string(repository(page)).expect("the page is there");
    let reference = read("docs/reference/cli.md");
    let settings = read("docs/reference/host-settings.md");
    let (mut known, mut missing) = (BTreeMap::new(), Vec::new());
    let options =
        regex::Regex::new(r"(?m)^ +(?:-[A-Za-z], )?(--[a-z][a-z-]+)").expect("the pattern is valid");
    let mut waiting = vec![Vec::<String>::new()];
    while let Some(path) = waiting.pop() {
        let help = help_of(&path, &mut known);
        let commands = help.split("\nCommands:\n").nth(1).unwrap_or_default().lines();
        for command in commands.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("     "))
        {
            let name = command.split_whitespace().next().expect("a line of the list names a command");
            if name != "help" {
                waiting.push([&path[..], &[name.to_owned()]].concat());
            }
        }
        if !path.is_empty() && !reference.contains(&path.join(" ")) {
            missing.push(path.join(" "));
        }
        for option in options.captures_iter(&help).map(|found| found[1].to_owned()) {
            // The reference of host settings has the variables of `serve`, from which the flags follow.
            if !["--help", "--version"].contains(&&*option)
                && path != ["serve"]
                && !reference.contains(&option)
                && !settings.contains(&option)
            {
                missing.push(format!("{} {option}", path.join(" ")));
            }
        }
    }
    assert!(known.len() > 20, "only {} commands were found", known.len());
    assert!(missing.is_empty(), "docs/reference/cli.md lacks:\n{}", missing.join("\n"));
}

#[test]
fn the_reference_of_host_settings_names_every_variable() {
    let help = help_of(&["serve".to_owned()], &mut BTreeMap::new());
    let pattern = regex::Regex::new(r"\[env:\s+([A-Z_]+)").expect("the pattern is valid");
    let variables: BTreeSet<_> = pattern.captures_iter(&help).map(|found| found[1].to_owned()).collect();
    assert!(variables.len() > 30, "only {} variables were found", variables.len());
    let page =
        std::fs::read_to_string(repository("docs/reference/host-settings.md")).expect("the page is there");
    let missing: Vec<_> = variables.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/reference/host-settings.md lacks {missing:?}");
}

/// One unknown key in each table, so that the problems list the known ones.
const UNKNOWN_KEYS: &str = r#"
name = "reference"
zzz = 1
[models.Item]
id = "string"
[environment]
zzz = 1
[integrations.a]
provider = "stripe-api-key"
component = "."
zzz = 1
[integrations.a.syncs.s]
runs = "every 5 minutes"
model = "Item"
zzz = 1
[integrations.a.syncs.s.limits]
zzz = 1
[integrations.a.actions.b]
zzz = 1
[integrations.a.webhooks.w]
zzz = 1
[integrations.a.lifecycle.connection_created]
zzz = 1
"#;

#[test]
fn the_reference_of_the_configuration_file_names_every_key() {
    let folder = tempfile::TempDir::new().expect("a temporary folder can be made");
    std::fs::write(folder.path().join("syncline.toml"), UNKNOWN_KEYS).expect("the folder is writable");
    let output = Command::new(env!("CARGO_BIN_EXE_syncline"))
        .args(["check", "--no-build", "--json"])
        .arg(folder.path())
        .output()
        .expect("the program can be run");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let pattern = regex::Regex::new(r#"the known keys are ([a-z_, ]+)"#).expect("the pattern is valid");
    let tables: Vec<_> = pattern.captures_iter(&said).map(|found| found[1].to_owned()).collect();
    assert_eq!(tables.len(), UNKNOWN_KEYS.matches("zzz").count(), "each table has its list: {said}");
    let read = |page: &str| std::fs::read_to_string(repository(page)).expect("the page is there");
    let page = read("docs/reference/syncline-toml.md") + &read("docs/reference/limits.md");
    let keys: BTreeSet<_> = tables.iter().flat_map(|table| table.split(", ")).collect();
    let missing: Vec<_> = keys.into_iter().filter(|key| !page.contains(key)).collect();
    assert!(missing.is_empty(), "docs/reference/syncline-toml.md and limits.md lack {missing:?}");
}

#[test]
fn the_guide_to_the_audit_log_lists_every_action() {
    let page =
        std::fs::read_to_string(repository("docs/how-to/read-the-audit-log.md")).expect("the page is there");
    let table = between(&page, "## Which actions are recorded", "\n## ");
    let missing: Vec<_> =
        AuditAction::ALL.iter().filter(|action| !table.contains(&format!("`{action}`"))).collect();
    assert!(missing.is_empty(), "the table of docs/how-to/read-the-audit-log.md lacks {missing:?}");
}

#[tokio::test]
async fn the_reference_of_metrics_names_every_metric() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let metrics = host.get("/metrics").await.expect(200).text();
    let pattern = regex::Regex::new(r"(?m)^# TYPE (syncline_[a-z_]+)").expect("the pattern is valid");
    let names: BTreeSet<_> = pattern.captures_iter(&metrics).map(|found| found[1].to_owned()).collect();
    assert!(names.len() > 10, "only {} metrics were found", names.len());
    let page = std::fs::read_to_string(repository("docs/reference/metrics.md")).expect("the page is there");
    let missing: Vec<_> = names.iter().filter(|name| !page.contains(&***name)).collect();
    assert!(missing.is_empty(), "docs/reference/metrics.md lacks {missing:?}");
}
