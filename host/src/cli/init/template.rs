//! The files of a new project, with the names of its provider and its model filled in.

use std::path::Path;

use clap::ValueEnum;

/// The language of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Language {
    Rust,
    #[value(alias = "ts")]
    Typescript,
    #[value(alias = "py")]
    Python,
}

/// A list of the provider that a new project reads.
pub(super) struct List {
    model: &'static str,
    path: &'static str,
    /// Parameters of every request. A value is a literal in all languages.
    query: &'static [(&'static str, &'static str)],
    /// The parameter for the time of the oldest change.
    since: &'static str,
    /// Name, type, and the value in each of two examples.
    fields: &'static [(&'static str, &'static str, [&'static str; 2])],
    /// The field that identifies an object in the provider's paths.
    key: &'static str,
}

/// The issues of a public repository, which GitHub shows without an account.
pub(super) const GITHUB_ISSUES: List = List {
    model: "Issue",
    path: "/repos/pallets/markupsafe/issues",
    query: &[("state", "\"all\""), ("sort", "\"updated\""), ("direction", "\"desc\""), ("per_page", "100")],
    since: "since",
    fields: &[
        ("id", "integer", ["1001", "1002"]),
        ("number", "integer", ["1", "2"]),
        ("title", "string", ["\"First\"", "\"Second\""]),
        ("state", "enum(open, closed)", ["\"open\"", "\"closed\""]),
        ("updated_at", "datetime", ["\"2026-01-01T00:00:00Z\"", "\"2026-01-02T00:00:00Z\""]),
    ],
    key: "number",
};

/// A list whose path and fields the author replaces.
pub(super) const ITEMS: List = List {
    model: "Item",
    path: "/items",
    query: &[("sort", "\"-updated_at\""), ("limit", "100")],
    since: "updated_since",
    fields: &[
        ("id", "string", ["\"1\"", "\"2\""]),
        ("name", "string", ["\"First\"", "\"Second\""]),
        ("updated_at", "datetime", ["\"2026-01-01T00:00:00Z\"", "\"2026-01-02T00:00:00Z\""]),
    ],
    key: "id",
};

/// What a project is created for.
pub(super) struct Subject {
    pub(super) list: &'static List,
    /// The name of the project.
    pub(super) name: String,
    pub(super) integration: String,
    pub(super) provider: String,
    pub(super) provider_name: String,
    /// A line of `syncline.toml` with the provider's address: a setting or a comment.
    pub(super) address: String,
    /// How to create a connection.
    pub(super) connect: String,
    /// The folder of the language's SDK.
    pub(super) sdk: String,
}

/// Path and text of a file.
pub(super) type File = (&'static str, String);

impl Language {
    /// The folder of the language in the folder of SDKs.
    pub(super) fn sdk_folder(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Typescript => "typescript",
            Self::Python => "python",
        }
    }

    /// A file in the root of each SDK.
    pub(super) fn sdk_manifest(self) -> &'static Path {
        Path::new(match self {
            Self::Rust => "Cargo.toml",
            Self::Typescript => "package.json",
            Self::Python => "pyproject.toml",
        })
    }

    /// The files of a project in this language.
    pub(super) fn files(self, subject: &Subject) -> Vec<File> {
        let common = [
            ("syncline.toml", include_str!("templates/syncline.toml")),
            ("README.md", include_str!("templates/README.md")),
        ];
        let own: &[(&str, &str)] = match self {
            Self::Rust => &[
                ("Cargo.toml", include_str!("templates/rust/Cargo.toml")),
                ("src/lib.rs", include_str!("templates/rust/lib.rs")),
                (".gitignore", "/target\n/build\n/.syncline\n"),
            ],
            Self::Typescript => &[
                ("package.json", include_str!("templates/typescript/package.json")),
                ("tsconfig.json", include_str!("templates/typescript/tsconfig.json")),
                ("src/index.ts", include_str!("templates/typescript/index.ts")),
                ("tests/index.test.ts", include_str!("templates/typescript/index.test.ts")),
                (".gitignore", "/node_modules\n/build\n/.syncline\n"),
            ],
            Self::Python => &[
                ("pyproject.toml", include_str!("templates/python/pyproject.toml")),
                ("requirements.txt", include_str!("templates/python/requirements.txt")),
                ("main.py", include_str!("templates/python/main.py")),
                ("tests/test_main.py", include_str!("templates/python/test_main.py")),
                (".gitignore", "/.venv\n__pycache__\n/build\n/.syncline\n"),
            ],
        };
        let values = self.values(subject);
        common.iter().chain(own).map(|(path, text)| (*path, fill(text, &values))).collect()
    }

    /// The value of each placeholder.
    fn values(self, subject: &Subject) -> Vec<(&'static str, String)> {
        let List { model, path, query, since, fields, key } = subject.list;
        let (source, generated, tests, install, test) = match self {
            Self::Rust => ("src/lib.rs", "src/models.rs", None, "", "cargo test"),
            Self::Typescript => {
                ("src/index.ts", "src/models.ts", Some("tests/index.test.ts"), "npm install", "npm test")
            }
            Self::Python => (
                "main.py",
                "models.py",
                Some("tests/test_main.py"),
                "python3 -m venv .venv\n.venv/bin/pip install --requirement requirements.txt",
                ".venv/bin/python -m pytest",
            ),
        };
        let (source_content, tests) = match tests {
            None => ("The code of the functions, and a test with the fake host of the SDK", String::new()),
            Some(path) => {
                ("The code of the functions", format!("| `{path}` | A test with the fake host of the SDK |"))
            }
        };
        let is_key = |field: &&(&str, &str, [&str; 2])| field.0 == *key;
        let (_, key_type, [key_value, _]) =
            fields.iter().find(is_key).expect("the key is one of the fields of the list");
        let lower = model.to_lowercase();
        let names: Vec<&str> = fields.iter().map(|(name, ..)| *name).collect();
        let types: Vec<String> = fields.iter().map(|(name, ty, _)| format!("{name} = \"{ty}\"")).collect();
        let plain: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", value.trim_matches('"'))).collect();
        vec![
            ("models", format!("{lower}s")),
            ("model", lower),
            ("Model", (*model).to_owned()),
            ("list", (*path).to_owned()),
            ("query", self.query(query, since)),
            ("query_line", format!("?{}", plain.join("&"))),
            ("since", (*since).to_owned()),
            ("fields", types.join("\n")),
            ("field_names", names.join(", ")),
            ("key", (*key).to_owned()),
            ("key_type", (*key_type).to_owned()),
            ("key_json", format!("{{\"{key}\": {key_value}}}")),
            ("first", self.example(fields, 0)),
            ("second", self.example(fields, 1)),
            ("source", source.to_owned()),
            ("generated", generated.to_owned()),
            ("source_content", source_content.to_owned()),
            ("tests", tests),
            ("install", install.to_owned()),
            ("test", test.to_owned()),
            ("name", subject.name.clone()),
            ("integration", subject.integration.clone()),
            ("provider", subject.provider.clone()),
            ("Provider", subject.provider_name.clone()),
            ("address", subject.address.clone()),
            ("connect", subject.connect.clone()),
            ("sdk", subject.sdk.clone()),
        ]
    }

    /// The parameters as an expression. In Rust, they are part of the path.
    fn query(self, query: &[(&str, &str)], since: &str) -> String {
        match self {
            Self::Rust => String::new(),
            Self::Typescript => {
                let members: Vec<_> = query.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                format!("{{ {}, {since}: checkpoint.cursor() }}", members.join(", "))
            }
            Self::Python => {
                let members: Vec<_> =
                    query.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
                format!("{{{}, \"{since}\": checkpoint.cursor()}}", members.join(", "))
            }
        }
    }

    /// An object of the list as an expression.
    fn example(self, fields: &[(&str, &str, [&str; 2])], index: usize) -> String {
        let member = |(name, _, values): &(&str, &str, [&str; 2])| match self {
            Self::Typescript => format!("{name}: {}", values[index]),
            Self::Rust | Self::Python => format!("\"{name}\": {}", values[index]),
        };
        let members = fields.iter().map(member).collect::<Vec<_>>().join(", ");
        match self {
            Self::Python => format!("{{{members}}}"),
            Self::Rust | Self::Typescript => format!("{{ {members} }}"),
        }
    }
}

/// Replaces each placeholder. A line that consists of an empty placeholder disappears.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    let mut text = template.to_owned();
    for (name, value) in values {
        let placeholder = format!("@@{name}@@");
        if value.is_empty() {
            text = text.replace(&format!("{placeholder}\n"), "");
        }
        text = text.replace(&placeholder, value);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_has_a_value() {
        let subject = |list| Subject {
            list,
            name: "shop".to_owned(),
            integration: "shop".to_owned(),
            provider: "acme".to_owned(),
            provider_name: "Acme".to_owned(),
            address: String::new(),
            connect: "Connect an account.".to_owned(),
            sdk: "/sdk".to_owned(),
        };
        for language in Language::value_variants() {
            for list in [&GITHUB_ISSUES, &ITEMS] {
                for (path, text) in language.files(&subject(list)) {
                    let left = text.lines().find(|line| line.contains("@@"));
                    assert_eq!(left, None, "{language:?}: {path}");
                }
            }
        }
    }

    #[test]
    fn a_sync_has_at_most_25_lines() {
        for (language, template) in [
            (Language::Rust, include_str!("templates/rust/lib.rs")),
            (Language::Typescript, include_str!("templates/typescript/index.ts")),
            (Language::Python, include_str!("templates/python/main.py")),
        ] {
            let end = template.find("Reads one").expect("it has an action");
            let is_code = |line: &&str| {
                let line = line.trim();
                !line.is_empty() && !["//", "/**", "#", "\"\"\""].iter().any(|start| line.starts_with(start))
            };
            // `#[sync]` starts like a comment of Python.
            let attributes = template[..end].matches("#[sync]").count();
            let lines = template[..end].lines().filter(is_code).count() + attributes;
            assert!(lines <= 25, "{language:?}: {lines}");
        }
    }
}
