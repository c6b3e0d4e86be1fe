//! Stripe: customers and invoices as records, customers also at the moment when Stripe tells of them, and an action
//! that adds a customer.

mod customers;
mod invoices;

syncline_sdk::export!(
    customers::customers,
    customers::create_customer,
    customers::customer_changed,
    invoices::invoices
);
