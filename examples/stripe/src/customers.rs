//! Customers: a full sync, because Stripe cannot list only the changed ones, a webhook function and an action.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use syncline_sdk::{Paging, Result, Webhook, Writer, action, http, sync, webhook};

#[derive(Serialize, Deserialize)]
pub struct Customer {
    id: String,
    /// Seconds since 1970.
    created: i64,
    email: Option<String>,
    name: Option<String>,
    phone: Option<String>,
    description: Option<String>,
    address: Option<Address>,
    metadata: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
pub struct Address {
    line1: Option<String>,
    line2: Option<String>,
    postal_code: Option<String>,
    city: Option<String>,
    state: Option<String>,
    country: Option<String>,
}

/// Saves all customers.
#[sync]
pub fn customers() -> Result {
    let paging = Paging::last_id("starting_after").items("/data").more("/has_more");
    let mut customers = Writer::new("Customer");
    for page in http::get("/v1/customers").query("limit", 100).pages::<Customer>(paging) {
        customers.save_all(page?)?;
    }
    customers.finish()?;
    Ok(())
}

#[derive(Serialize, Deserialize)]
pub struct NewCustomer {
    email: Option<String>,
    name: Option<String>,
    phone: Option<String>,
    description: Option<String>,
    address: Option<Address>,
    metadata: Option<BTreeMap<String, String>>,
}

/// Creates a customer.
#[action]
pub fn create_customer(new: NewCustomer) -> Result<Customer> {
    http::post("/v1/customers").form(&new).send_ok()?.json()
}

/// An event about a customer.
#[derive(Deserialize)]
pub struct CustomerEvent {
    #[serde(rename = "type")]
    kind: String,
    data: CustomerData,
}

#[derive(Deserialize)]
struct CustomerData {
    object: Customer,
}

/// Saves or deletes a customer when Stripe reports a change.
#[webhook]
pub fn customer_changed(call: Webhook<CustomerEvent>) -> Result {
    let CustomerEvent { kind, data } = call.body;
    let mut customers = Writer::new("Customer");
    if kind == "customer.deleted" {
        customers.delete(data.object.id)?;
    } else {
        customers.save(&data.object)?;
    }
    customers.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use syncline_sdk::serde_json::{Value, from_value, json};
    use syncline_sdk::testing::Host;

    use super::*;

    fn customer(id: &str) -> Value {
        let nothing = Value::Null;
        json!({
            "id": id, "created": 1, "email": nothing, "name": nothing, "phone": nothing,
            "description": nothing, "address": nothing, "metadata": { "plan": "free" },
        })
    }

    #[test]
    fn every_page_is_saved() {
        let host = Host::for_project();
        let mut first = customer("cus_1");
        first["delinquent"] = json!(false);
        let page = json!({ "data": [first, customer("cus_2")], "has_more": true });
        host.answer("GET /v1/customers?limit=100", 200, &page);
        let page = json!({ "data": [customer("cus_3")], "has_more": false });
        host.answer("GET /v1/customers?limit=100&starting_after=cus_2", 200, &page);
        customers().unwrap();
        let expected = ["cus_1", "cus_2", "cus_3"].map(customer);
        assert_eq!(host.records("Customer"), expected, "fields outside of the model are omitted");
    }

    #[test]
    fn a_list_that_starts_again_fails_instead_of_looping() {
        let host = Host::for_project();
        let page = json!({ "data": [customer("cus_1")], "has_more": true });
        host.answer("GET /v1/customers?limit=100", 200, &page);
        host.answer("GET /v1/customers?limit=100&starting_after=cus_1", 200, &page);
        assert_eq!(customers().unwrap_err().code(), "pagination-loop");
    }

    fn report(kind: &str, customer: Value) -> Result {
        let body = json!({ "id": "evt_1", "type": kind, "data": { "object": customer } });
        customer_changed(from_value(json!({ "headers": {}, "body": body })).unwrap())
    }

    #[test]
    fn a_customer_is_saved_and_deleted_by_webhooks() {
        let host = Host::for_project();
        report("customer.created", customer("cus_1")).unwrap();
        assert_eq!(host.records("Customer"), [customer("cus_1")]);
        report("customer.deleted", customer("cus_1")).unwrap();
        assert!(host.records("Customer").is_empty());
    }

    #[test]
    fn a_new_customer_is_sent_as_a_form() {
        let host = Host::for_project();
        host.answer("POST /v1/customers", 200, &customer("cus_9"));
        let new = json!({ "email": "ada@example.com", "address": { "city": "Köln" }, "metadata": { "plan": "pro" } });
        let created = host.call(create_customer::FUNCTION, new).unwrap();
        assert_eq!(created, Some(customer("cus_9")));
        let body = "address%5Bcity%5D=K%C3%B6ln&email=ada%40example.com&metadata%5Bplan%5D=pro";
        assert_eq!(host.requests()[0].body, body);
    }

    #[test]
    fn an_error_of_stripe_reaches_the_caller() {
        let host = Host::for_project();
        host.answer("POST /v1/customers", 400, &json!({ "error": { "message": "Invalid email" } }));
        let error = create_customer(from_value(json!({})).unwrap()).err().unwrap();
        assert_eq!(error.code(), "provider-http-error");
        assert!(error.details().unwrap().contains("Invalid email"));
    }
}
