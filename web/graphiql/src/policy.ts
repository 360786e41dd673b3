// What makes Monaco fit a policy without 'unsafe-inline': a nonce on <style> elements, and style attributes set through the object model.

/** Puts the response's nonce on every `<style>` that a library creates. */
export function nonceStyleElements(): void {
  const nonce = document.querySelector<HTMLMetaElement>('meta[property="csp-nonce"]')?.nonce;
  if (!nonce) return;
  const create = document.createElement.bind(document);
  // At creation, because a sheet that entered the document without its nonce stays empty for ever.
  const createWithNonce = (name: string, options?: ElementCreationOptions): HTMLElement => {
    const element = create(name, options);
    if (element instanceof HTMLStyleElement) element.nonce = nonce;
    return element;
  };
  document.createElement = createWithNonce as typeof document.createElement;
}

/** Renames the style attributes of the given HTML, which the policy would refuse, until `applyParkedStyles` sees the elements. */
export function parkStyles(html: string): string {
  return html.replace(/<[a-z][^>]*>/gi, (tag) => tag.replaceAll(' style="', ' data-style="'));
}

/** Gives elements their parked styles as they enter the document, before the next frame is painted. */
export function applyParkedStyles(): void {
  const observer = new MutationObserver((records) => {
    for (const record of records) {
      for (const node of record.addedNodes) {
        if (node instanceof Element) applyWithin(node);
      }
    }
  });
  observer.observe(document.documentElement, { childList: true, subtree: true });
}

function applyWithin(root: Element): void {
  if (root.hasAttribute('data-style')) apply(root);
  root.querySelectorAll('[data-style]').forEach(apply);
}

function apply(element: Element): void {
  if (!(element instanceof HTMLElement || element instanceof SVGElement)) return;
  // What was set by script since then is newer, hence last.
  element.style.cssText = `${element.getAttribute('data-style') ?? ''};${element.style.cssText}`;
  element.removeAttribute('data-style');
}
