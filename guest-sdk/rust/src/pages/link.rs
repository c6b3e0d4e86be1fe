//! The `Link` header (RFC 8288), as far as paging needs it.

/// The target of the first link with the relation `next`.
pub fn next<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> Option<String> {
    headers.filter(|(name, _)| name.eq_ignore_ascii_case("link")).find_map(|(_, value)| next_of(value))
}

fn next_of(mut value: &str) -> Option<String> {
    loop {
        // A comma separates links, but may also stand inside of a target or of a quoted text.
        let (_, from_target) = value.split_once('<')?;
        let (target, rest) = from_target.split_once('>')?;
        let parameters = &rest[..end_of_link(rest)];
        if parameters.split(';').any(is_next) {
            return Some(target.to_owned());
        }
        value = &rest[parameters.len()..];
    }
}

fn end_of_link(parameters: &str) -> usize {
    let mut quoted = false;
    parameters
        .find(|c| {
            quoted ^= c == '"';
            c == ',' && !quoted
        })
        .unwrap_or(parameters.len())
}

fn is_next(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, value)| {
        name.trim().eq_ignore_ascii_case("rel")
            && value.trim().trim_matches('"').split_whitespace().any(|rel| rel.eq_ignore_ascii_case("next"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_next_link_wherever_it_stands() {
        for (header, expected) in [
            (r#"<https://a.example/?page=2>; rel="next""#, Some("https://a.example/?page=2")),
            (r#"</x?a=1,2>; rel=prev, </x?a=3,4> ; title="a, b"; REL = "last Next""#, Some("/x?a=3,4")),
            (r#"</x>; rel="prev"; title="rel=next, <y>""#, None),
            ("<broken; rel=next", None),
            ("", None),
        ] {
            assert_eq!(next([("link", header)].into_iter()).as_deref(), expected, "{header}");
        }
    }
}
