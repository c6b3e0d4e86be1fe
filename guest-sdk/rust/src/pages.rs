//! Lists that the provider returns in pages, for all common kinds of paging.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::http::{Request, Response, parse};
use crate::{Error, Result, log, run};

mod link;
mod pointer;

/// The kind of paging of a list, and the place of the items in a response.
///
/// Places in a response are JSON pointers: `/data` is the key `data`, `/meta/next` is the key `next` in `meta`, and
/// the empty text is the whole response.
#[derive(Debug, Clone)]
pub struct Paging {
    step: Step,
    items: String,
    id: String,
    more: Option<String>,
    may_lack_place: bool,
    start: Option<String>,
}

#[derive(Debug, Clone)]
enum Step {
    Link,
    Cursor { at: String, parameter: String },
    LastId { parameter: String },
    Keyset { at: String, parameter: String, id_parameter: Option<String> },
    Offset { parameter: String },
    PageNumber { parameter: String },
}

impl Paging {
    /// The response's `Link` header contains the next page with `rel="next"`.
    pub fn link() -> Self {
        Self::new(Step::Link)
    }

    /// The response contains a cursor at the place `at`, which is sent as the query parameter `parameter`.
    pub fn cursor(at: impl Into<String>, parameter: impl Into<String>) -> Self {
        Self::new(Step::Cursor { at: at.into(), parameter: parameter.into() })
    }

    /// The next page follows the last item's id, which is sent as the query parameter `parameter`. The place of the id
    /// is `/id` unless [`id`](Self::id) sets another one.
    pub fn last_id(parameter: impl Into<String>) -> Self {
        Self::new(Step::LastId { parameter: parameter.into() })
    }

    /// The list is sorted by the value at the place `at` in each item, such as `/updated_at`. The last item's value is
    /// sent as the query parameter `parameter`.
    ///
    /// With [`id_parameter`](Self::id_parameter), the last item's id is sent as well, and the provider continues after
    /// that item. Without it, the next page begins with the items that have this value, and the items that an earlier
    /// page contained are dropped; their ids tell them apart. Such a list cannot be read if more items share a value
    /// than a page holds: the error is `pagination-loop`.
    pub fn keyset(at: impl Into<String>, parameter: impl Into<String>) -> Self {
        Self::new(Step::Keyset { at: at.into(), parameter: parameter.into(), id_parameter: None })
    }

    /// The query parameter `parameter` is the number of items to skip.
    pub fn offset(parameter: impl Into<String>) -> Self {
        Self::new(Step::Offset { parameter: parameter.into() })
    }

    /// The query parameter `parameter` is the page number, from 1 unless [`start`](Self::start) sets another one.
    pub fn page_number(parameter: impl Into<String>) -> Self {
        Self::new(Step::PageNumber { parameter: parameter.into() })
    }

    /// Sets the place of the array of items. By default, the response itself is the array.
    #[must_use]
    pub fn items(mut self, at: impl Into<String>) -> Self {
        self.items = at.into();
        self
    }

    /// Sets the place of an item's id, which is `/id` by default.
    #[must_use]
    pub fn id(mut self, at: impl Into<String>) -> Self {
        self.id = at.into();
        self
    }

    /// For [`keyset`](Self::keyset): sends the last item's id as this query parameter, too. The provider then returns
    /// only items after that one. Has no effect on other kinds.
    #[must_use]
    pub fn id_parameter(mut self, parameter: impl Into<String>) -> Self {
        if let Step::Keyset { id_parameter, .. } = &mut self.step {
            *id_parameter = Some(parameter.into());
        }
        self
    }

    /// The provider leaves out the place of the cursor or of the flag `more` if there is only one page. By default,
    /// such a first page is suspicious: a wrong place would end every list after its first page. The function gets a
    /// warning in its log or, if the host would delete the records that it does not save, the error
    /// `pagination-place-missing`.
    #[must_use]
    pub fn may_lack_place(mut self) -> Self {
        self.may_lack_place = true;
        self
    }

    /// Sets the place of a flag that states whether more pages follow. If it is `false`, no empty last page is
    /// requested.
    #[must_use]
    pub fn more(mut self, at: impl Into<String>) -> Self {
        self.more = Some(at.into());
        self
    }

    /// Sets the first page: a [`Page::next`] from the checkpoint of an earlier run. `None` is the start of the
    /// list.
    #[must_use]
    pub fn start(mut self, next: Option<String>) -> Self {
        self.start = next;
        self
    }

    fn new(step: Step) -> Self {
        Self {
            step,
            items: String::new(),
            id: "/id".to_owned(),
            more: None,
            may_lack_place: false,
            start: None,
        }
    }
}

impl Request {
    /// Sends the request repeatedly and returns a page at a time. Each item is deserialized as a `T`. A
    /// `Box<serde_json::value::RawValue>` keeps an item exactly as the provider wrote it.
    pub fn pages<T: DeserializeOwned>(self, paging: Paging) -> Pages<T> {
        Pages::new(self, paging)
    }
}

/// A page of a list, which dereferences to a slice of its items.
#[derive(Debug, Clone)]
pub struct Page<T> {
    items: Vec<T>,
    /// The argument of [`Paging::start`] that continues after this page. None on the last page.
    pub next: Option<String>,
}

impl<T> Deref for Page<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> IntoIterator for Page<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

/// The pages of a list, from [`Request::pages`].
///
/// Ends after a page without a next one, and before an empty page. If the provider's pages form a loop, it returns
/// an error with the code `pagination-loop`. It ends after an error.
#[derive(Debug)]
pub struct Pages<T> {
    request: Request,
    paging: Paging,
    /// The current value of `offset` or `page_number`.
    position: u64,
    followed: HashSet<String>,
    previous_items: Option<u64>,
    /// For [`Paging::keyset`]: the ids of the items that the next page may repeat.
    seen: HashSet<String>,
    longest_page: usize,
    is_first: bool,
    state: State,
    item: PhantomData<fn() -> T>,
}

#[derive(Debug)]
enum State {
    More,
    Failed(Error),
    Ended,
}

impl<T: DeserializeOwned> Pages<T> {
    fn new(request: Request, paging: Paging) -> Self {
        let mut pages = Self {
            request,
            position: u64::from(matches!(paging.step, Step::PageNumber { .. })),
            paging,
            followed: HashSet::new(),
            previous_items: None,
            seen: HashSet::new(),
            longest_page: 0,
            is_first: true,
            state: State::More,
            item: PhantomData,
        };
        if let Some(start) = pages.paging.start.take() {
            pages.state = pages.follow(start).map_or_else(State::Failed, |()| State::More);
        }
        pages
    }

    fn fetch(&mut self) -> Result<Page<T>> {
        let response = self.request.clone().send_ok()?;
        let body = response.text()?;
        let mut raw_items = self.raw_items(&response, body)?;
        self.refuse_same_page(&raw_items)?;
        if std::mem::take(&mut self.is_first) && !raw_items.is_empty() {
            self.check_places(&response, body)?;
        }
        self.longest_page = self.longest_page.max(raw_items.len());
        let next = if raw_items.is_empty() || self.is_last(&response, body)? {
            None
        } else {
            self.place_of_next(&response, body, &raw_items)?
        };
        self.drop_repeated(&response, &mut raw_items)?;
        let items = raw_items
            .iter()
            .enumerate()
            .map(|(index, raw)| {
                parse(raw.get()).map_err(|problem| {
                    let id = pointer::find_text(raw.get(), &self.paging.id).ok().flatten();
                    let id = id.map(|id| format!(" (id `{id}`)")).unwrap_or_default();
                    response.unexpected(&format_args!("item {index} of the page{id}: {problem}"))
                })
            })
            .collect::<Result<Vec<T>>>()?;
        Ok(Page { items, next })
    }

    /// Reports a place that the first page does not have, because the list may end there by mistake.
    fn check_places(&self, response: &Response, body: &str) -> Result {
        let is_last = self.is_last(response, body)?;
        let cursor = match &self.paging.step {
            Step::Cursor { at, .. } if !is_last => Some(at),
            _ => None,
        };
        for place in cursor.into_iter().chain(&self.paging.more) {
            let found = pointer::find(body, place).map_err(|problem| response.unexpected(&problem))?;
            if found.is_some() || self.paging.may_lack_place {
                continue;
            }
            let message = format!(
                "{} returned a first page without a value at `{place}`, so the list may end too early; correct the place, \
                 or call `may_lack_place` if the provider leaves it out",
                self.request.target()
            );
            if run::is_full() {
                return Err(Error::new("pagination-place-missing", message));
            }
            log::warn!("{message}");
        }
        Ok(())
    }

    /// Drops the items of a keyset's page that earlier pages contained. A page without any other items is the last one.
    fn drop_repeated(&mut self, response: &Response, items: &mut Vec<&RawValue>) -> Result {
        let Step::Keyset { at, id_parameter: None, .. } = &self.paging.step else { return Ok(()) };
        let text_at = |item: &RawValue, place: &str| {
            let found =
                pointer::find_text(item.get(), place).map_err(|problem| response.unexpected(&problem))?;
            found.ok_or_else(|| response.unexpected(&format_args!("an item of the page has no `{place}`")))
        };
        let Some(last) = items.last() else { return Ok(()) };
        let value = text_at(last, at)?;
        let (mut seen, mut fresh) = (HashSet::new(), Vec::with_capacity(items.len()));
        for item in items.iter() {
            let id = text_at(item, &self.paging.id)?;
            let is_repeated = self.seen.contains(&id);
            if !is_repeated {
                fresh.push(*item);
            }
            if is_repeated || text_at(item, at)? == value {
                seen.insert(id);
            }
        }
        // The rest of the list may begin behind a page of repeated items that is as long as pages get.
        if fresh.is_empty() && items.len() > 1 && items.len() >= self.longest_page {
            return Err(
                self.circle(&format!("returned a whole page with the same `{at}`; request longer pages"))
            );
        }
        self.seen = seen;
        *items = fresh;
        Ok(())
    }

    fn raw_items<'a>(&self, response: &Response, body: &'a str) -> Result<Vec<&'a RawValue>> {
        let place = &self.paging.items;
        let array = pointer::find(body, place).map_err(|problem| response.unexpected(&problem))?;
        array
            .and_then(|array| serde_json::from_str(array.get()).ok())
            .ok_or_else(|| response.unexpected(&format_args!("expected an array at `{place}`")))
    }

    fn is_last(&self, response: &Response, body: &str) -> Result<bool> {
        let Some(place) = &self.paging.more else { return Ok(false) };
        let more = pointer::find(body, place).map_err(|problem| response.unexpected(&problem))?;
        Ok(more.is_some_and(|more| more.get() == "false"))
    }

    fn place_of_next(&self, response: &Response, body: &str, items: &[&RawValue]) -> Result<Option<String>> {
        let text_at = |json: &str, place: &str| {
            pointer::find_text(json, place).map_err(|problem| response.unexpected(&problem))
        };
        match &self.paging.step {
            Step::Link => Ok(link::next(response.headers())),
            Step::Cursor { at, .. } => text_at(body, at),
            Step::LastId { .. } | Step::Keyset { .. } => {
                let Some(last) = items.last() else { return Ok(None) };
                let of_last = |place: &str| {
                    text_at(last.get(), place)?.ok_or_else(|| {
                        let place = place.trim_start_matches('/');
                        response.unexpected(&format_args!("the last item of the page has no `{place}`"))
                    })
                };
                match &self.paging.step {
                    Step::Keyset { at, id_parameter: Some(_), .. } => {
                        let position = [of_last(at)?, of_last(&self.paging.id)?];
                        Ok(Some(serde_json::json!(position).to_string()))
                    }
                    Step::Keyset { at, .. } => of_last(at).map(Some),
                    _ => of_last(&self.paging.id).map(Some),
                }
            }
            Step::Offset { .. } => Ok(Some((self.position + items.len() as u64).to_string())),
            Step::PageNumber { .. } => Ok(Some((self.position + 1).to_string())),
        }
    }

    /// Changes the request to the next page.
    fn follow(&mut self, next: String) -> Result {
        // Without the parameter of the id, a list can have several pages that begin at the same value.
        let may_repeat = matches!(self.paging.step, Step::Keyset { id_parameter: None, .. });
        if !self.followed.insert(next.clone()) && !may_repeat {
            return Err(self.circle(&format!("points to `{next}` a second time")));
        }
        match &self.paging.step {
            Step::Link => self.request.redirect(next),
            Step::Keyset { parameter, id_parameter: Some(id_parameter), .. } => {
                let [value, id] = serde_json::from_str::<[String; 2]>(&next).map_err(|_| {
                    let message = format!(
                        "the start of the list must be a JSON array of the last item's value and id, got `{next}`"
                    );
                    Error::new("invalid-paging", message)
                })?;
                self.request.set_query(parameter, value);
                self.request.set_query(id_parameter, id);
            }
            Step::Cursor { parameter, .. } | Step::LastId { parameter } | Step::Keyset { parameter, .. } => {
                self.request.set_query(parameter, next);
            }
            Step::Offset { parameter } | Step::PageNumber { parameter } => {
                self.position = next.parse().map_err(|_| {
                    Error::new(
                        "invalid-paging",
                        format!("the start of the list must be a number, got `{next}`"),
                    )
                })?;
                self.request.set_query(parameter, next);
            }
        }
        Ok(())
    }

    /// A counter never repeats. A provider that ignores it is detected because it returns the same page again.
    fn refuse_same_page(&mut self, items: &[&RawValue]) -> Result {
        if !matches!(self.paging.step, Step::Offset { .. } | Step::PageNumber { .. }) || items.is_empty() {
            return Ok(());
        }
        let mut hasher = DefaultHasher::new();
        items.iter().for_each(|item| item.get().hash(&mut hasher));
        if self.previous_items.replace(hasher.finish()) == Some(hasher.finish()) {
            return Err(self.circle("returned the same page twice"));
        }
        Ok(())
    }

    fn circle(&self, how: &str) -> Error {
        let pages = self.followed.len();
        let message =
            format!("{} {how} after {pages} pages, so the list would never end", self.request.target());
        Error::new("pagination-loop", message)
    }
}

impl<T: DeserializeOwned> Iterator for Pages<T> {
    type Item = Result<Page<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        let page = match std::mem::replace(&mut self.state, State::Ended) {
            State::More => self.fetch(),
            State::Failed(error) => Err(error),
            State::Ended => return None,
        };
        match &page {
            Ok(page) if page.is_empty() => return None,
            Ok(page) => {
                if let Some(next) = page.next.clone() {
                    self.state = self.follow(next).map_or_else(State::Failed, |()| State::More);
                }
            }
            Err(_) => {}
        }
        Some(page)
    }
}
