export const name = "@syncline/sdk";
export const version = "0.1.0";
