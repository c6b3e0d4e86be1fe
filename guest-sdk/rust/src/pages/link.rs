//! The `Link` header (RFC 8288), as far as paging uses it.

/// Returns the target of the first link with the relation `next`.
pub fn next<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> Option<String> {
    headers.filter(|(name, _)| name.eq_ignore_ascii_case("link")).find_map(|(_, value)| next_of(value))
}

/// A comma separates links, but it can also occur in a target or in a quoted string.
fn next_of(mut value: &str) -> Option<String> {
    loop {
        let (_, from_target) = value.split_once('<')?;
        let (target, rest) = from_target.split_once('>')?;
        let (mut parameters, following) = split_unquoted(rest, ',');
        while !parameters.is_empty() {
            let (parameter, others) = split_unquoted(parameters, ';');
            if is_next(parameter) {
                return Some(target.to_owned());
            }
            parameters = others;
        }
        value = following;
    }
}

/// Returns the text before and after the first separator outside quotes.
fn split_unquoted(text: &str, separator: char) -> (&str, &str) {
    let mut quoted = false;
    let mut escaped = false;
    let end = text.find(|c| {
        quoted ^= c == '"' && !escaped;
        escaped = quoted && !escaped && c == '\\';
        c == separator && !quoted
    });
    end.map_or((text, ""), |end| (&text[..end], &text[end + separator.len_utf8()..]))
}

fn is_next(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, value)| {
        name.trim().eq_ignore_ascii_case("rel")
            && value.trim().trim_matches('"').split_whitespace().any(|rel| rel.eq_ignore_ascii_case("next"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn next_in(header: &str) -> Option<String> {
        next([("link", header)].into_iter())
    }

    #[test]
    fn finds_the_next_link_at_any_position() {
        for (header, expected) in [
            (r#"<https://a.example/?page=2>; rel="next""#, Some("https://a.example/?page=2")),
            (r#"</x?a=1,2>; rel=prev, </x?a=3,4> ; title="a, b"; REL = "last Next""#, Some("/x?a=3,4")),
            (r#"</x>; rel="prev"; title="\"; rel=next, <y>; rel=next""#, None),
            ("<broken; rel=next", None),
            ("", None),
        ] {
            assert_eq!(next_in(header).as_deref(), expected, "{header}");
        }
    }

    mod fuzz {
        use super::*;

        #[test]
        fn the_next_link_is_a_target_of_the_header_and_prints_itself() {
            syncline_fuzz::check_text("link-headers", |header| {
                let Some(target) = next_in(header) else { return };
                assert!(header.contains(&format!("<{target}>")));
                assert!(header.to_ascii_lowercase().contains("next"));
                let printed = format!("<{target}>; rel=\"next\"");
                assert_eq!(next_in(&printed).as_ref(), Some(&target));
                assert_eq!(next_in(&format!("</first>; rel=first, {printed}, {header}")), Some(target));
            });
        }
    }

    proptest! {
        #[test]
        fn any_target_is_found_among_other_links(target in "[^<>]{0,40}", title in "[^\"\\\\]{0,20}") {
            let header = format!("</a>; rel=prev; title=\"{title}\", <{target}>; title=\"{title}\"; rel=\"next\"");
            prop_assert_eq!(next_in(&header), Some(target));
        }

        #[test]
        fn arbitrary_headers_do_not_panic(header in "[<>;,=\"\\\\ a-zé]{0,60}") {
            next_in(&header);
        }
    }
}
