//! Stripe: saves customers and invoices as records, saves customers immediately when Stripe sends a webhook, and has
//! an action that creates a customer.

mod customers;
mod invoices;

syncline_sdk::export!(
    customers::customers,
    customers::create_customer,
    customers::customer_changed,
    invoices::invoices
);
