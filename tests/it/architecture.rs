//! ARCHITECTURE.md lists the crates and their dependencies, and has to match Cargo's metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::support::repository;

type Crates = BTreeMap<String, BTreeSet<String>>;

/// The crates of the host with their dependencies on each other, without dev-dependencies.
fn crates_in_metadata() -> Crates {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(repository(""))
        .output()
        .expect("cargo starts");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let host = repository("host").canonicalize().expect("the folder of the host exists");
    let short = |name: &Value| name.as_str().map(|name| name.trim_start_matches("syncline-").to_owned());
    let packages = metadata["packages"].as_array().expect("there are packages");
    let of_host = packages.iter().filter(|package| {
        package["manifest_path"].as_str().is_some_and(|path| std::path::Path::new(path).starts_with(&host))
    });
    let with_dependencies = of_host.map(|package| {
        let dependencies = package["dependencies"].as_array().expect("there is a list of dependencies");
        let ours = dependencies.iter().filter(|dependency| {
            dependency["kind"].is_null()
                && dependency["name"].as_str().is_some_and(|name| name.starts_with("syncline-"))
        });
        let names = ours.filter_map(|dependency| short(&dependency["name"])).collect();
        (short(&package["name"]).expect("a package has a name"), names)
    });
    with_dependencies.collect()
}

/// The rows `| `crate` | purpose | `dependency`, … |` of the section about crates.
fn crates_in_document() -> Crates {
    let document = std::fs::read_to_string(repository("ARCHITECTURE.md")).expect("the document exists");
    let section = document.split("\n## ").find(|section| section.starts_with("Crates\n"));
    let rows =
        section.expect("there is a section about crates").lines().filter(|line| line.starts_with("| `"));
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [name, _purpose, dependencies] = cells[..] else { panic!("a row has three cells: {row}") };
        (quoted(name).remove(0), quoted(dependencies).into_iter().collect())
    })
    .collect()
}

#[test]
fn architecture_md_lists_every_crate_with_its_dependencies() {
    assert_eq!(crates_in_document(), crates_in_metadata());
}
